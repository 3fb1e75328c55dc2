"""Texts in many scripts: words of which the first five and the last five share no character."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Script:
    """Ten words of a script and what stands between words."""

    words: tuple[str, ...]
    space: str = " "

    @property
    def text(self):
        """The first five words."""
        return self.space.join(self.words[:5])

    @property
    def other(self):
        """The last five words."""
        return self.space.join(self.words[5:])

    @property
    def changed(self):
        """The first five words, the third one replaced."""
        return self.space.join((*self.words[:2], self.words[7], *self.words[3:5]))


def spaced(words):
    return Script(tuple(words.split()))


def joined(words):
    return Script(tuple(words.split()), "")


SCRIPTS = {
    "English": spaced("river stone market winter garden apple doctor bridge yellow moon"),
    "French": spaced("élève forêt très naïf garçon été œuvre hôtel maïs château"),
    "Spanish": spaced("está niño canción corazón árbol pingüino según mañana útil jamás"),
    "Vietnamese": spaced("tiếng Việt phở ngày đường người sông chợ biển núi"),
    "Turkish": spaced("İstanbul ışık çiçek güneş şeker öğretmen ağaç yağmur düş küçük"),
    "Russian": spaced("мир дом река текст книга день ночь город слово зима"),
    "Greek": spaced("λόγος ήλιος θάλασσα δέντρο νύχτα πόλη βιβλίο φως μέρα ουρανός"),
    "Arabic": spaced("كتاب مدرسة شمس قمر بحر جبل ليل نهر وردة سماء"),
    "Hebrew": spaced("שָׁלוֹם סֵפֶר יָם שֶׁמֶשׁ לַיְלָה עֵץ בַּיִת דֶּרֶךְ מַיִם אוֹר"),
    "Hindi": spaced("पूर्व प्रधानमन्त्री किताब नदी शहर रात सूरज चाँद पेड़ घर"),
    "Tamil": spaced("தமிழ் நூல் ஆறு மலை கடல் வீடு மரம் இரவு பகல் வானம்"),
    "Korean": spaced("한국 도서관 강물 나무 겨울 바다 하늘 사람 노래 학교"),
    "Thai": joined("หอคอย สูง มาก ใน เมือง ผู้ ปี ดุ รบ ไฟ"),
    "Lao": joined("ສະບາຍ ດີ ເມືອງ ລາວ ພູ ຫິນ ຄໍ ປີ ຮູ ໄຟ"),
    "Khmer": joined("ភ្នំ ពេញ ទឹក សាលា គោ ផ្ទះ ឈើ ឆ្មា ខ្យល់ ថ្ងៃ"),
    "Chinese": joined("今天 天气 很好 我们 公园 一座 高塔 图书 河流 春季"),
    "Japanese": joined("東京 タワー とても 高い です 猫 メモ 犬 ぬの 旅"),
    "emoji": spaced("😀 🎉 👍🏽 👩‍🚀 ❤️ 🐱 🚗 🌍 🍕 ⚽"),
}
