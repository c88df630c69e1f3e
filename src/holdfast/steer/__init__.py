"""What a live run is told, and who may: a socket, a record of what is in force, the rates of sources (design/0049)."""
