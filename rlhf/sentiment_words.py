"""Words that praise and words that blame, for the sentiment rule; a list of our own.

About films, goods and service alike. Forms are listed one by one, since nothing is stemmed.
"""

POSITIVE = """
admirable amazing amused amusing beautiful beautifully best bold brave bright brilliant
brilliantly captivating charm charming charms clever cleverly comfortable delight delighted
delightful delights elegant enjoy enjoyable enjoyed enjoys excellent exciting fantastic fine
flawless fresh friendly fun funny generous gentle glad glorious good graceful grateful great
gripping happily happy heartfelt helpful honest hopeful impressed impressive impressively inspired
inspiring joy joyful liked lively love loved lovely loves magical magnificent marvellous masterful
masterpiece memorable moving nice original outstanding perfect perfectly pleasant pleased pleasure
polished powerful quick refreshing reliable remarkable rich satisfied satisfying sharp shines
sincere skilful smart smooth splendid strong stunning subtle superb superbly tender terrific
thoughtful thrilled thrilling touching treasure triumph warm warmth welcome wise witty wonderful
wonderfully worth worthy
"""
"""Each counts +1."""

NEGATIVE = """
angry annoyed annoying appalling awful awfully awkward bad badly bitter bland bored boring broken
careless cheap clumsy cold confused confusing cruel damaged dead defective disappointed
disappointing disappointment disappoints disaster dislike disliked dreadful dreary dull empty
endless fail failed fails failure fake false faulty feeble flat flaw flawed foolish forced
forgettable frustrated frustrating grim hate hated hates hollow horrible ignored insulting
irritating lame late lazy lifeless lost mediocre mess messy mindless miserable missing muddled
noisy nonsense overlong pathetic painful plodding pointless poor poorly predictable regret
ridiculous rude rushed sad shallow shoddy silly sleepy sloppy slow sluggish stale stiff stupid
tedious terrible terribly thin tired tiresome trite ugly unhappy unpleasant upset upsetting
useless waste wasted wastes weak wooden worse worst worthless wreck wrong
"""
"""Each counts -1."""
