"""The nouns by which captions call things of a class: a table of COCO's 80 classes, and a rule for others.

A noun of two classes (``bike``, ``board``) stands at both. A plural that is not regular follows its singular after a
slash. A noun that has one form for both, or means a pair, says so (``sheep/sheep``). The first noun is the class's
plain name. Words that say what a thing is for and not what it is (``drink``, ``seat``) are not here, nor are wider
words that also name what COCO does not mark (``fruit``, ``food``, ``furniture``); and ``glasses`` are worn.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

_TABLE = """
people
    person: person/people, man/men, woman/women, boy, girl, child/children, kid, guy, lady, gentleman/gentlemen, male,
        female, adult, baby, toddler, infant, teenager, teen, youth, individual, human, player, worker, mother, mom,
        father, dad, son, daughter, brother, sister, friend, student, teacher, officer, policeman/policemen,
        policewoman/policewomen, cop, fireman/firemen, firefighter, soldier, guard, driver, pilot, vendor, chef, cook,
        waiter, waitress, customer, shopper, tourist, pedestrian, passenger, spectator, onlooker, fan, bride, groom,
        bridesmaid, businessman/businessmen, businesswoman/businesswomen, athlete, teammate, opponent, coach, referee,
        umpire, batter, catcher, pitcher, hitter, goalie, golfer, boxer, wrestler, gymnast, runner, jogger, swimmer,
        diver, surfer, skier, snowboarder, boarder, skateboarder, skater, rider, biker, cyclist, bicyclist,
        motorcyclist, jockey, cowboy, racer, climber, hiker, fisherman/fishermen, musician, guitarist, drummer, singer,
        dancer, performer, artist, photographer, clown, doctor, nurse, patient, farmer, shepherd, monk, nun, model,
        brunette, blonde
animals
    bird: bird, duck, goose/geese, seagull, gull, pigeon, parrot, swan, owl, eagle, chicken, rooster, crow, animal
    cat: cat, kitten, kitty, tabby, animal
    dog: dog, puppy, pup, poodle, terrier, retriever, labrador, lab, collie, bulldog, greyhound, dachshund,
        beagle, husky, dalmatian, chihuahua, pug, rottweiler, hound, animal
    horse: horse, pony, foal, colt, mare, stallion, bronco, animal
    sheep: sheep/sheep, lamb, ram, ewe, animal
    cow: cow, cow/cattle, bull, calf/calves, ox/oxen, steer, heifer, animal
    elephant: elephant, animal
    bear: bear, cub, grizzly, animal
    zebra: zebra, zebra/zebra, animal
    giraffe: giraffe, giraffe/giraffe, animal
vehicles
    bicycle: bicycle, bike
    car: car, automobile, suv, sedan, taxi, cab, van, minivan, jeep, vehicle
    motorcycle: motorcycle, motorbike, bike, moped, scooter
    airplane: airplane, plane, aeroplane, jet, jetliner, airliner, aircraft/aircraft, biplane
    bus: bus, minibus, vehicle
    train: train, locomotive, subway, tram, trolley
    truck: truck, pickup, lorry, semi, firetruck, van, vehicle
    boat: boat, ship, sailboat, rowboat, canoe, kayak, yacht, raft, ferry, gondola, motorboat, speedboat,
        barge, vessel, dinghy
clothing
    tie: tie, necktie, bowtie
other
    traffic light: traffic light, stoplight, stop light, traffic signal
    fire hydrant: fire hydrant, hydrant
    stop sign: stop sign
    parking meter: parking meter, meter
    bench: bench, pew
    backpack: backpack, knapsack, rucksack, bag
    umbrella: umbrella, parasol
    handbag: handbag, purse, bag, tote
    suitcase: suitcase, luggage/luggage, briefcase, suit case, baggage/baggage, bag
    frisbee: frisbee, disc, disk
    skis: skis/skis, ski
    snowboard: snowboard, snow board, board
    sports ball: ball, soccer ball, tennis ball, football, basketball, baseball, volleyball, softball, soccerball
    kite: kite, parasail
    baseball bat: bat, baseball bat
    baseball glove: glove, baseball glove, mitt, catcher's mitt
    skateboard: skateboard, skate board, board
    surfboard: surfboard, surf board, boogie board, board
    tennis racket: racket, tennis racket, racquet, tennis racquet
    bottle: bottle
    wine glass: wine glass, glass/wine glasses, wineglass
    cup: cup, mug, glass/drinking glasses
    fork: fork
    knife: knife/knives
    spoon: spoon
    bowl: bowl
    banana: banana
    apple: apple
    sandwich: sandwich, burger, hamburger, cheeseburger
    orange: orange, tangerine
    broccoli: broccoli/broccoli
    carrot: carrot
    hot dog: hot dog, hotdog
    pizza: pizza
    donut: donut, doughnut
    cake: cake, cupcake
    chair: chair, armchair, recliner, highchair, stool
    couch: couch, sofa, loveseat
    potted plant: potted plant, plant, houseplant
    bed: bed
    dining table: table, dining table, picnic table, dining room table
    toilet: toilet, urinal
    tv: tv, television, monitor, computer monitor, screen, computer screen, flatscreen, computer
    laptop: laptop, laptop computer, lap top, computer, notebook
    mouse: mouse/mice, computer mouse/computer mice
    remote: remote, remote control, controller, game controller, wii remote, wiimote
    keyboard: keyboard, computer keyboard
    cell phone: cell phone, cellphone, phone, smartphone, smart phone, telephone, mobile phone, iphone
    microwave: microwave, microwave oven
    oven: oven, stove
    toaster: toaster
    sink: sink, basin
    refrigerator: refrigerator, fridge, freezer
    book: book, textbook, novel
    clock: clock, clock face
    vase: vase
    scissors: scissors/scissors
    teddy bear: teddy bear, stuffed bear, stuffed animal, teddy, toy bear
    hair drier: hair dryer, hair drier, blow dryer, dryer, hairdryer, blowdryer
    toothbrush: toothbrush, tooth brush
"""
#: Categories that exclude one another.
EXCLUSIVE = ("people", "animals", "vehicles")
_LONGEST = 3  # words of a noun


@dataclass(frozen=True, slots=True)
class ClassNouns:
    """How captions call the things of a class."""

    name: str
    category: str | None
    pairs: tuple[tuple[str, str], ...]  # singular and plural, the plain name first

    @property
    def words(self) -> frozenset[str]:
        """All words of its nouns."""
        return frozenset(word for pair in self.pairs for noun in pair for word in noun.split())


class Named(NamedTuple):
    """What a noun at the end of a phrase says."""

    noun: str
    classes: tuple[str, ...]
    may_be_one: bool
    may_be_many: bool


@cache
def class_nouns() -> dict[str, ClassNouns]:
    """The table, by class."""
    found, category, lines = {}, "", re.sub(r",\n\s+", ", ", _TABLE).strip().split("\n")
    for line in lines:
        if not line.startswith(" "):
            category = line
            continue
        name, nouns = line.strip().split(": ")
        found[name] = ClassNouns(name, category, tuple(map(_pair, nouns.split(", "))))
    return found


def nouns_of(name: str) -> ClassNouns:
    """The nouns of a class; of one that is not in the table its name.

    >>> nouns_of("tree").pairs
    (('tree', 'trees'),)
    """
    return class_nouns().get(name) or ClassNouns(name, None, (_pair(name.lower()),))


def noun_phrase(name: str) -> str:
    """How one asks for a thing of a class.

    >>> noun_phrase("dog"), noun_phrase("apple"), noun_phrase("skis")
    ('a dog', 'an apple', 'skis')
    """
    singular, plural = nouns_of(name).pairs[0]
    if singular == plural == name and name.endswith("s"):
        return name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


class NounTable:
    """Looks up which of some classes a phrase names."""

    def __init__(self, classes: Sequence[str]) -> None:
        one: dict[str, list[str]] = defaultdict(list)
        many: dict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(classes):
            for singular, plural in nouns_of(name).pairs:
                one[singular].append(name)
                many[plural].append(name)
        self._one, self._many = one, many

    def look_up(self, words: Sequence[str]) -> Named | None:
        """What the noun says that ends a phrase of these words, in small letters; the longest noun counts.

        >>> NounTable(["dog", "hot dog"]).look_up(["two", "hot", "dogs"])
        Named(noun='hot dogs', classes=('hot dog',), may_be_one=False, may_be_many=True)
        """
        for length in range(min(_LONGEST, len(words)), 0, -1):
            noun = " ".join(words[-length:])
            one, many = self._one.get(noun, []), self._many.get(noun, [])
            if one or many:
                return Named(noun, tuple(dict.fromkeys([*one, *many])), bool(one), bool(many))
        return None


def _pair(noun: str) -> tuple[str, str]:
    """
    >>> _pair("dog"), _pair("puppy"), _pair("bench"), _pair("man/men")
    (('dog', 'dogs'), ('puppy', 'puppies'), ('bench', 'benches'), ('man', 'men'))
    """
    singular, _, plural = noun.partition("/")
    if plural:
        return singular, plural
    if re.search("[^aeou]y$", singular):
        return singular, singular[:-1] + "ies"
    return singular, singular + ("es" if re.search("(ch|sh|s|x)$", singular) else "s")
