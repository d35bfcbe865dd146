"""Public-domain text: Carroll 1865, the Analects, Cao Xueqin's novel, and a mixture."""

ENGLISH = """Alice was beginning to get very tired of sitting by her sister on the bank, and of having \
nothing to do: once or twice she had peeped into the book her sister was reading, but it had no pictures \
or conversations in it, “and what is the use of a book,” thought Alice “without pictures or conversations?”

So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy \
and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and \
picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear \
the Rabbit say to itself, “Oh dear! Oh dear! I shall be late!” But when the Rabbit actually took a watch \
out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet."""

CHINESE = """子曰：“學而時習之，不亦說乎？有朋自遠方來，不亦樂乎？人不知而不慍，不亦君子乎？”

满纸荒唐言，一把辛酸泪！都云作者痴，谁解其中味？此开卷第一回也。作者自云：因曾历过一番梦幻之后，\
故将真事隐去，而借“通灵”之说，撰此《石头记》一书也。故曰“甄士隐”云云。但书中所记何事何人？\
自又云：“今风尘碌碌，一事无成，忽念及当日所有之女子，一一细考较去，觉其行止见识，皆出于我之上。”"""

MIXED = """In 1791 程伟元 printed the novel 《红楼梦》 (Hónglóu Mèng) at 萃文书屋; the naïve reader asks: \
who wrote it? Война и мир, Ἰλιάς, Les Misérables, Đại Việt sử ký, 源氏物語（げんじものがたり）, 홍길동전, \
ألف ليلة وليلة, महाभारत, 50€–60€, 3×4=12, e-mail: a.b@c.org 👩‍👩‍👧 x² ≥ 0 … İstanbul, Straße, ﬁn. \
他说:“OK,我明天3点到。”"""
