"""Does "auto" choose what is fastest?"""
