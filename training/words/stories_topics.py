# ruff: noqa: E501  (one topic a line)
"""Topics to explain: what it is, where, what it is made of, what it does, what it needs, and a curious fact.

One line each, fields separated by bars.
"""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """What there is to say about something."""

    name: str
    kind: str
    where: str
    parts: str
    work: str
    needs: str
    curious: str
    plural: bool


_LINES = """
cats|small animals with soft fur and sharp claws|in houses, on farms and in the streets of most towns|whiskers, quick paws and eyes that see well at night|hunt mice, sleep for many hours and clean their fur with the tongue|fresh water, some meat and a quiet place|some people sneeze near them because of tiny pieces of skin and saliva
dogs|animals that have lived with people for a very long time|in families, on farms and in rescue teams|a fine nose, strong teeth and good ears|guard the house, follow a trail and play with a ball|food twice a day, long walks and a friendly voice|each one has a pattern on its nose that no other has
bees|insects that live together in large groups|in hollow trees and in wooden boxes|two pairs of wings, a sting and a long tongue|carry pollen from flower to flower and make honey|flowers, water and a dry home|they show each other the way with a dance
trees|tall plants with a hard trunk|in forests, parks and along roads|roots, a trunk, branches and leaves|take in water from the soil and turn sunlight into sugar|light, water and enough room for the roots|you can count the rings of the wood to learn their age
rain|water that falls from the clouds|over seas, fields and towns|many small drops|fills the rivers, cleans the air and lets the plants grow|warm air that rises and then cools down|a drop is flat at the bottom while it falls
snow|frozen water that falls in flakes|in cold countries and on high mountains|thin crystals of ice with six arms|covers the ground like a blanket and keeps the seeds warm|cold air and enough water in the clouds|fresh layers swallow sound, so the world becomes quiet
the moon|a ball of rock that circles the earth|in the night sky, far beyond the clouds|grey dust, old craters and wide plains|moves the sea and makes the tides|about a month for one trip around us|it always shows us the same side
the sun|a star, and the one that is closest to us|in the middle of the planets|hot gas that glows|gives light and heat to everything that lives|nothing from us, for it burns its own gas|its light needs eight minutes to reach the earth
rivers|streams of water that flow to the sea|in valleys, between hills and through towns|a spring, a bed, two banks and a mouth|carry water, sand and boats|rain and melting snow|over many years they can cut deep into stone
bread|food that is baked from flour and water|in bakeries and kitchens|a brown crust and a soft inside|fills the stomach and gives strength for the day|flour, water, salt, yeast and a hot oven|small bubbles of gas make the dough rise
cheese|food that is made from milk|in dairies, cellars and shops|fat, salt and protein|keeps for a long time and gives taste to a meal|milk, warmth and some weeks of rest|some kinds have holes because of tiny living things
tea|a drink that is made from leaves|in cups all over the world|dried leaves and hot water|warms the hands and keeps people awake|water that has just boiled and a few minutes|black and green kinds come from the same plant
salt|a white mineral with a strong taste|in the sea and under the ground|small cubes that shine|gives taste to food and keeps it fresh|only a dry place|long ago it was so precious that soldiers were paid with it
glass|a hard and clear material|in windows, bottles and lamps|sand that was melted in great heat|lets light in and keeps wind and rain outside|a hot furnace and a careful hand|it can be melted and used again as often as you like
paper|thin sheets to write and print on|in schools, offices and letter boxes|fibers of wood pressed together|keeps words, numbers and pictures|wood, water and a large machine|good sheets can last for hundreds of years
clocks|machines that measure time|on towers, walls and wrists|hands, wheels, a spring or a battery|count the seconds and show the hour|a steady source of power|the first ones used shadows and dripping water
bridges|roads that cross a river or a valley|in towns, in the mountains and over the sea|a deck, strong pillars and sometimes long cables|bring people from one side to the other|good plans, stone or steel and regular care|on hot days they become a little longer
trains|rows of wagons that run on rails|between towns and under big cities|an engine, wheels of steel and many seats|carry people and goods over long distances|rails, power and a timetable|because steel rolls on steel, they need little energy
ships|large vessels that travel on water|on seas, lakes and wide rivers|a hull, an engine, a deck and a rudder|carry food, cars and travelers from port to port|deep water, fuel and a skilled crew|steel floats because the hull is full of air
bicycles|simple vehicles with two wheels|in every street and on many paths|a frame, two wheels, a chain and pedals|turn the push of the legs into speed|air in the tires and some oil on the chain|a moving one stays upright almost by itself
lighthouses|towers with a strong lamp|on rocky coasts and at the entrance of harbors|thick walls, a long stair and a turning lamp|warn ships of rocks and show the way|a bright light and someone who looks after it|each one blinks in its own rhythm
windmills|buildings that use the wind|on flat land and near the coast|four sails, heavy wheels and a stone|grind grain, pump water or make electricity|a steady wind and a little grease|the whole top can be turned to face the wind
books|many pages bound together|in libraries, shops and bedrooms|a cover, pages and thousands of words|tell stories and keep what people have learned|a dry shelf and a curious reader|the smell of old ones comes from the slow change of the paper
maps|drawings that show land from above|in cars, ships and schoolbags|lines, colors and small signs|help people to find the way|exact measures and a scale|every flat one must stretch some part of the round earth
music|sound that is put in order|in halls, streets and living rooms|notes, rhythm and silence|makes people dance, cry or feel calm|an instrument or a voice, and practice|babies know some tunes before they can speak
mirrors|smooth surfaces that throw back light|in bathrooms, cars and telescopes|glass with a thin layer of metal|show what is in front of them|a clean cloth now and then|they swap front and back, not left and right
soap|a material that loosens dirt|beside every sink|fat or oil mixed with a strong salt|holds on to grease so that water can carry it away|water and a little rubbing|people have made it for more than four thousand years
magnets|pieces of metal that pull iron|in motors, speakers and on refrigerator doors|two ends that are called poles|pull or push each other without touching|no power at all, but no great heat either|the earth itself is a very large one
volcanoes|mountains that can throw out hot rock|where the plates of the earth meet|a deep chamber, a pipe and a crater|bring melted rock, ash and gas to the surface|pressure from far below|their ash makes the soil rich, so farmers stay close
deserts|dry regions with very little rain|on every continent|sand, stones and a few tough plants|become hot by day and cold by night|hardly any water|after a rare rain they can be full of flowers
whales|very large animals that live in the sea|in all oceans, from the ice to the warm south|a broad tail, thick fat and a blowhole|dive deep, sing and swim thousands of miles|air, clean water and a lot of small prey|they breathe air as we do and must come up for it
owls|birds that hunt at night|in forests, barns and old towers|large eyes, soft feathers and sharp claws|catch mice without making a sound|a quiet place and enough prey|they can turn the head almost all the way around
apples|round fruits that grow on trees|in gardens and orchards|a thin skin, sweet flesh and a core with seeds|taste fresh and give quick energy|sun, bees in spring and cool nights|there are thousands of kinds with different names
potatoes|plants with thick parts under the ground|in fields of many countries|a brown skin and a firm inside|store the food of the plant and feed people|loose soil, water and no frost|they came to Europe by ship and were first grown for their flowers
schools|places where people learn together|in every town and many villages|rooms, books, teachers and pupils|teach reading, counting and how to work with others|time, patience and good questions|the word once meant free time
markets|places where people buy and sell|on squares, in halls and along streets|stalls, scales and loud voices|bring food from the farm to the kitchen|buyers, sellers and fair prices|some have been held on the same day for centuries
telescopes|tubes that make far things look near|on hills, on balconies and in space|lenses or mirrors and a steady stand|collect more light than an eye can|clear air and a dark night|looking far away also means looking back in time
batteries|small boxes that store electricity|in phones, lamps and cars|two metals and a paste between them|push a current through a wire|to be charged or replaced from time to time|you can build a weak one from a lemon and two nails
"""


def _topic(line: str) -> Topic:
    name, kind, where, parts, work, needs, curious = line.split("|")
    return Topic(name, kind, where, parts, work, needs, curious, plural=name.endswith("s") and name != "glass")


TOPICS: tuple[Topic, ...] = tuple(_topic(line) for line in _LINES.strip().splitlines())
