"""Names, plain words and table headers for copying."""

from __future__ import annotations

_words = str.split

FIRST_NAMES = _words(
    "Ada Ben Clara David Elena Felix Greta Hugo Iris Jonas Karin Leo Marta Nils Olga Paul Quinn Rosa Sven Tara Ulla"
    " Viktor Wanda Xenia Yusuf Zoe Amir Bianca Cem Dora Emil Fatima Goran Hana Ivan Jana Kofi Lena Milan Nora Omar"
    " Petra Ravi Sofia Tomas Uma Vera Walt Yara Zeno"
)

LAST_NAMES = _words(
    "Adler Berg Costa Dietz Evans Fischer Gruber Holm Ivanova Jansen Keller Lund Moreno Novak Olsen Pereira Quist Rossi"
    " Santos Torres Ueda Varga Weber Xu Young Zimmer Arnold Brandt Cohen Duran Engel Frank Garcia Hansen Ito Jung Kumar"
    " Larsen Meyer Nagy Ortiz Park Reyes Silva Tanaka Urban Vogel Winter Yilmaz Ziegler"
)

PLAIN_WORDS = _words(
    "apple river stone cloud lamp garden window silver paper bridge candle forest harbor island jacket kettle ladder"
    " mirror needle orange pencil quiet rocket summer table umbrella valley winter yellow zebra anchor basket copper"
    " dragon engine feather guitar hammer insect jungle kitchen lemon magnet nickel ocean pepper quilt ribbon saddle"
    " ticket velvet wagon yogurt almond button cactus dinner eagle fabric glove honey ivory jelly knife lantern meadow"
    " napkin olive planet rabbit spoon tunnel uncle violin walnut amber bottle castle desert elbow flower ginger helmet"
    " icicle jigsaw kernel locket marble noodle onion pillow rain sugar tower vessel whale acorn brick"
)

HEADERS = _words("name city color price year size code team month animal fruit metal grade floor stock owner")

FILE_ENDINGS = _words("txt csv json py md log png yaml")

SYLLABLES = _words(
    "ba be bi bo bu da de di do du fa fe fi fo ga ge go gu ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no nu"
    " pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo za zo"
)

CODAS = ("", "", "", "n", "r", "s", "l", "t", "m", "k")
