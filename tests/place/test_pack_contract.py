from wattline.place import Pack
from wattline.testing import PlacerContract


class TestPackEasy(PlacerContract):
    place = Pack()


class TestPackGreedy(PlacerContract):
    place = Pack("greedy")


class TestPackNone(PlacerContract):
    place = Pack("none")
