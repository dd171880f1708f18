"""A few lines of text to train tiny tokenizers on: several scripts, code, digits."""

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and then it rests in the shade of the old tree.",
    "She sells sea shells by the sea shore; the shells that she sells are sea shells for sure.",
    "In the beginning there was the word, and the word was written on the wall of the house.",
    "There is nothing that we cannot do when we have the time, the tools and the people to do it.",
    "def read(self, name: str) -> int: return self.values[name] if name in self.values else 0",
    "for index in range(0, 10): print(index, index * index, index + 1)",
    "Die Katze sitzt auf der Matte, und der Hund liegt vor der Tür. Größe, Äpfel, Öl.",
    "Où est la bibliothèque ? Elle est là-bas, près de l'école où étudient les élèves.",
    "Привет, мир. Сегодня хорошая погода.",
    "今日は良い天気です。明日も晴れるでしょう。",
    "user assistant system message question answer what where when who why how",
)
