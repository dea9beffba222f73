"""Words for stories: who, where, what, and the turns that a plot can take."""

from __future__ import annotations

_words = str.split


def _phrases(text: str) -> list[str]:
    return [phrase.strip() for phrase in text.split("|")]


NAMES = _words(
    "Mila Tom Ana Leo Nora Finn Lily Sam Ruby Max Ella Hugo Ida Ben Zoe Omar Greta Ivo Maya Carl Tess Otto Lena Noah"
    " Rosa Jonas Vera Emil Clara Yusuf Hana Paul Dora Felix Marta Nils Suri Kofi Elsa Timo"
)
HEROES = _phrases(
    "fox|rabbit|bear|owl|mouse|cat|dog|turtle|squirrel|hedgehog|crow|frog|duck|goat|beaver|badger|otter|swan|deer|donkey"
    "|baker|sailor|gardener|painter|farmer|teacher|clockmaker|fisher|robot|dragon|princess|knight|shepherd|miller|pilot"
    "|piano player|young wizard|lighthouse keeper|toy maker|postman"
)
PLACES = _phrases(
    "in a quiet forest|by the sea|on a green hill|near an old mill|in a small village|at the edge of a wide lake"
    "|in a busy town|under a tall mountain|on a little island|beside a slow river|in a deep valley|on a windy farm"
    "|in a house of red bricks|behind the railway station|in a garden full of roses|at the end of a long road"
    "|close to the harbor|in a hollow tree|on the top floor of a tower|next to the bakery"
)
THINGS = _phrases(
    "lantern|red kite|silver key|music box|wooden boat|map|golden bell|blue umbrella|clock|letter|violin|telescope"
    "|basket of apples|warm scarf|old book|glass marble|drum|paper star|magic seed|silver spoon|compass|painted mask"
    "|bicycle|honey jar|rope ladder|snow globe|puzzle|teapot|birdhouse|tin soldier"
)
FEELINGS = _words("happy proud calm curious cheerful hopeful brave patient kind gentle")
WEATHER = _phrases(
    "The sun was shining|A soft rain was falling|The wind was strong|Snow covered the ground|The sky was clear"
    "|Fog lay over the land|The evening sun was warm|The first leaves were falling|The birds were singing"
    "|The air smelled of bread"
)
HABITS = _phrases(
    "liked to get up early and look at the sky|told a short tale to the children every evening"
    "|collected round stones and kept them in a box|never went out without a piece of bread"
    "|always said good morning to the trees|loved to sing while working|dreamed of seeing the world"
    "|drank tea with the neighbors on Sundays|counted the stars before going to sleep"
    "|knew every path for miles around|kept the windows open even in winter|wrote down one new word each day"
)

# A plot in parts; every part is one sentence out of several. {N} hero's name, {h} hero, {t} thing, {f} friend's name,
# {g} friend, {p} place, {e} feeling.
FOUND = _phrases(
    "One morning {N} found the {t} on the doorstep|One day a stranger left the {t} at the gate"
    "|While cleaning the attic, {N} discovered the {t}|At the market {N} traded three eggs for the {t}"
    "|After the storm the {t} lay in the wet grass|An old woman gave {N} the {t} as a present"
    "|{N} had wished for the {t} for a whole year, and now it was there|Under a heavy stone {N} saw the {t}"
)
TROUBLES = {
    "lost": _phrases(
        "But on the way home the {t} was gone|But the next day the {t} had disappeared"
        "|But when night came, nobody could find the {t} anymore|But a gust of wind carried the {t} away"
    ),
    "broken": _phrases(
        "But the {t} was broken, and nobody knew how to mend it|But the {t} fell down and cracked"
        "|But something inside the {t} no longer worked|But the {t} was covered with dirt and would not do its work"
    ),
    "wanted": _phrases(
        "But a greedy merchant wanted the {t} for himself|But the neighbor said that the {t} belonged to her"
        "|But two brothers began to quarrel about the {t}|But the mayor ordered that the {t} be locked away"
    ),
    "afraid": _phrases(
        "But {N} was afraid to use the {t}|But {N} did not dare to show the {t} to anyone"
        "|But every time {N} touched the {t}, a strange sound could be heard"
        "|But people said that the {t} brought bad luck"
    ),
}
FIRST_TRIES = {
    "lost": _phrases(
        "{N} looked behind every door and under every bush|{N} asked the birds, but they had seen nothing"
        "|{N} walked back the whole way with a candle|{N} drew a picture of it and put it on the wall of the inn"
    ),
    "broken": _phrases(
        "{N} tried glue, string and even honey|{N} took it apart and put it together again"
        "|{N} read three books about repairs|{N} carried it to the smith, but the smith only shook his head"
    ),
    "wanted": _phrases(
        "{N} talked for hours, but nobody would listen|{N} offered all the money in the house, and it was not enough"
        "|{N} hid it under the bed and could not sleep|{N} wrote a long letter and got no answer"
    ),
    "afraid": _phrases(
        "{N} put it on a shelf and looked at it from far away|{N} tried to think of something else"
        "|{N} opened the box a little and closed it at once|{N} made a plan and forgot it again"
    ),
}
FRIENDS_COME = _phrases(
    "Then {f} the {g} came by and asked what was wrong|In the evening {f} the {g} knocked at the door"
    "|Luckily {f} the {g} had time to help|That was when {N} met {f} the {g}"
    "|Only {f} the {g} was not surprised|{f} the {g}, who had heard everything, sat down beside {N}"
)
ADVICE = _phrases(
    '"Two can see more than one," said {f}|"Let us take one small step at a time," said {f}'
    '|"Do not give up before breakfast," said {f}|"Sometimes you have to ask the right question," said {f}'
    '|"We will do it together," said {f}|"I was in the same trouble once," said {f}'
)
SOLUTIONS = {
    "lost": _phrases(
        "Together they followed the tracks in the sand and found the {t} in a crow's nest"
        "|They waited until the moon was up, and its light fell on the {t}"
        "|They searched the river bank, and there the {t} hung on a branch"
        "|A child had kept the {t} safe and was glad to give it back"
    ),
    "broken": _phrases(
        "They worked all night, and at sunrise the {t} was as good as new"
        "|A single drop of oil was all that the {t} needed"
        "|They found the missing piece in an old drawer, and the {t} worked again"
        "|With patience and a thin wire they mended the {t}"
    ),
    "wanted": _phrases(
        "They agreed to share the {t}, one week each, and everyone was content"
        "|They showed how much joy the {t} gave to all, and the others felt ashamed"
        "|They made a second one that was just like the {t}, and so the quarrel ended"
        "|In the end a fair judge decided that the {t} could stay"
    ),
    "afraid": _phrases(
        "They counted to three and tried it, and the {t} was not frightening at all"
        "|They laughed so much that there was no more room for fear, and {N} took the {t} in both hands"
        "|Step by step {N} learned how the {t} worked, and the fear grew smaller each day"
        "|They found out that the strange sound came from a cricket inside the {t}"
    ),
}
SCENES = _phrases(
    "On the way they crossed a stream and ate some bread with cheese"
    "|An owl called from the roof, and the clouds moved on"
    "|They rested under a tree and shared a pear|It was getting dark, but the stars showed the way"
    "|Somewhere a dog barked, and then it was quiet again|They sang an old song so that the path seemed shorter"
    "|A snail crossed the road, and they waited politely|The moon looked like a thin slice of melon"
    "|They met a carter who told them a joke|Their shoes were wet, but they did not mind"
)
ENDINGS = _phrases(
    "From that day on {N} and {f} were the best of friends|That night {N} slept better than ever before"
    "|And {N} never forgot what a good friend is worth|Since then the {t} has had a place of honor by the window"
    "|They celebrated with cake, and even the neighbors came"
    "|And whenever it rained, they remembered that day and smiled"
    "|So {N} learned that asking for help is a kind of courage|And if you pass by there, you may still see the {t}"
)

TOPIC_USERS = _phrases("a child|a friend|a new student|my grandmother|a visitor|a young reader|a class|a beginner")
