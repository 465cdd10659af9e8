"""What tests of several rooms are made with."""
