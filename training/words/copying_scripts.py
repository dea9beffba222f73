# ruff: noqa: RUF001  (look-alike letters are the point of this file)
"""Scripts for copying: a few real words each, and the letters that random words are made of.

The lists are short on purpose: every letter is frequent enough to become a token of a small vocabulary. Pairs that a
damaged model mixes up are in the lists together: Arabic and Persian yeh, Latin and Cyrillic look-alikes, hyphens.
"""

from __future__ import annotations

WORDS = {
    "Latin": "café naïve Zürich Łódź señor français übung århus crème Málaga São piñata Ærø Žižek Dvořák smörgås"
    " Erdoğan Świt Çelik fjörd",
    "Greek": "λόγος φως θάλασσα ήλιος φιλία ψυχή κόσμος νερό ουρανός δρόμος σοφία αλήθεια",
    "Cyrillic": "мир вода книга дорога зима город песня хлеб друг звезда река школа",
    "Arabic": "سلام توحيد كتاب شمس بحر نور مدينة ماء ليل قمر علم یار",
    "Hebrew": "שלום ספר מים אור ילד בית ירח עיר דרך לחם שמש עולם",
    "Devanagari": "नमस्ते पानी सूरज किताब नदी घर रात दिन मित्र शांति फूल आकाश",
    "CJK": "日本 中国 東京 北京 山水 学校 電車 天気 先生 大海 小林 火星",
    "Kana": "さくら ねこ いぬ そら カメラ テスト ピアノ ゆき はな もり うみ ほし",
    "Hangul": "서울 한국 바다 하늘 나무 학교 사랑 친구 구름 나라 바람 노래",
    "Emoji": "🙂 🚀 🌊 🍎 🐱 🐶 🌙 ⭐ 🔥 🎵 📦 🌲 ☀️ 🎲 🏠 ✅",
    "Symbols": "∑ √ ≤ ≥ ≠ π ∞ → ← ± × ÷ ∂ ∈ € £ ¥ § ° µ",
}

LETTERS = {
    "Latin": "abdeikmnorstuáàâäãåçèéêëíïñóôöõøùúüýžšłńśźğřčæß",
    "Greek": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώ",
    "Cyrillic": "абвгдеёжзийклмнопрстуфхцчшщыьэюя",
    "Arabic": "ابتثجحخدرزسشصطعفقكلمنهويیةء",
    "Hebrew": "אבגדהוזחטיכלמםנןספעצקרשת",
    "Devanagari": "अआइकखगचजटडतदनपबमयरलवशसहाीेो",
    "CJK": "日月火水木金土山川田人大小中上下東西南北京国学生先年時天気海林",
    "Kana": "あいうえおかきくけこさしすせそたちてとなにのはまもりアイカサタナマラン",
    "Hangul": "가나다라마바사아자하서울한국학교무늘랑친구름람노래도시",
}

# Punctuation for codes: what people put into identifiers, paths and marks. U+2011 and U+2013 look like "-".
MARKS = [*"!?#$%&*+-_=/\\|:;,.@^~<>()[]{}'\"`", "…", "–", "‑", "«", "»", "•", "¿", "¡"]
