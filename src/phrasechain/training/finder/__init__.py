"""Training the phrase finder from marked-up captions."""
