from phrasechain.cli import main

main()
