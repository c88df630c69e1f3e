"""What a run is doing: its status, made when somebody asks."""
