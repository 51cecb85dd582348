"""What a site knows, put into the models of the API. Pure: from a replica (and who is up) to an answer."""
