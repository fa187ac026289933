#include "workers/engine/reward/verify/language.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/base/macros.h"

enum script { LATIN, CYRILLIC, ARABIC, DEVANAGARI, HAN, KANA, OTHERS };
/* Scripts by their characters; from OTHERS on they belong to one language. */
static const struct {
    int32_t from, to;
    enum script script;
    const char *language;
} ranges[] = {
    { 0x41, 0x5A, LATIN, NULL },        { 0x61, 0x7A, LATIN, NULL },      { 0xC0, 0x24F, LATIN, NULL },
    { 0x1E00, 0x1EFF, LATIN, NULL },    { 0x370, 0x3FF, OTHERS, "el" },   { 0x1F00, 0x1FFF, OTHERS, "el" },
    { 0x400, 0x52F, CYRILLIC, NULL },   { 0x590, 0x5FF, OTHERS, "he" },   { 0x600, 0x6FF, ARABIC, NULL },
    { 0x750, 0x77F, ARABIC, NULL },     { 0xFB50, 0xFDFF, ARABIC, NULL }, { 0xFE70, 0xFEFF, ARABIC, NULL },
    { 0x900, 0x97F, DEVANAGARI, NULL }, { 0x980, 0x9FF, OTHERS, "bn" },   { 0xA00, 0xA7F, OTHERS, "pa" },
    { 0xA80, 0xAFF, OTHERS, "gu" },     { 0xB80, 0xBFF, OTHERS, "ta" },   { 0xC00, 0xC7F, OTHERS, "te" },
    { 0xC80, 0xCFF, OTHERS, "kn" },     { 0xD00, 0xD7F, OTHERS, "ml" },   { 0xE00, 0xE7F, OTHERS, "th" },
    { 0x1100, 0x11FF, OTHERS, "ko" },   { 0x3040, 0x30FF, KANA, "ja" },   { 0x3400, 0x4DBF, HAN, NULL },
    { 0x4E00, 0x9FFF, HAN, NULL },      { 0xAC00, 0xD7AF, OTHERS, "ko" }, { 0xF900, 0xFAFF, HAN, NULL },
};
/* Frequent words of each language, and letters that few others use (for English groups of them, with spaces between). */
// clang-format off
static const struct { const char *language; enum script script; const char *words, *letters; } languages[] = {
    { "en", LATIN, "the of and to in is that it was for on with as are this be at by have from or an not you but they we can will which has more i my me your he she do does did so if what who when there all about would", "th wh sh ck ow igh ing ly oo ee" },
    { "es", LATIN, "de la que el en y los se del las un por con no una su para es al lo como más pero sus le ya o este sí porque esta son entre", "ñ¿¡áéíóú" },
    { "pt", LATIN, "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu sua ou são você está", "ãõçáéíóúâêô" },
    { "fr", LATIN, "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont avec son la vous je nous cette être", "çœèêàùûîôé" },
    { "de", LATIN, "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat dass sie nach wird bei ich", "ßäöü" },
    { "it", LATIN, "di e il la che in a per un è del con non una i le si da sono al della dei nel come più ma anche alla gli ha lo questo essere", "àèìòù" },
    { "nl", LATIN, "de van het een en in is dat op te zijn met voor niet aan er die ook als bij uit maar om hij ze naar wordt kan deze door heeft", "" },
    { "af", LATIN, "die van en in is het nie om te dat met vir op sy ook as word aan wat sal hy was of een by deur kan hulle ons daar", "" },
    { "sv", LATIN, "och i att det som en på är av för med till den har de inte om ett han men var jag sig från vi så kan när alla eller", "åäö" },
    { "da", LATIN, "og i at det er en til på som af for med den der de ikke har et var han om men fra jeg sig vi kan også være blev eller", "æøå" },
    { "no", LATIN, "og i det på som er en til å av for at med de har ikke den han et om var fra jeg men seg vi kan også ble være eller hun", "æøå" },
    { "fi", LATIN, "ja on ei se että oli en hän mutta ovat kun tai mukaan joka myös niin kuin sen ole minä mitä vain olla nyt jos voi ovat kaikki tämä", "äö" },
    { "et", LATIN, "ja on ei et see oli kui ta ka mis aga ning või oma tema kes seda välja siis ma nii üks nagu mida olid selle", "õäöü" },
    { "pl", LATIN, "i w z na do się nie to jest że o jak po co ale a od za tym przez dla są już tak być czy jego które który było może", "ąćęłńóśźż" },
    { "cs", LATIN, "a v se na je že s z do o to jako za by ale k i pro jsou po které který při nebo bylo být tak ve jeho již svou", "ěščřžýáíéůúťďň" },
    { "sk", LATIN, "a v sa na je že s z do o to ako za by ale k i pre sú po ktoré ktorý pri alebo bolo byť tak vo jeho už svoje", "ľĺŕôäčšžťďňýáíé" },
    { "sl", LATIN, "in je v na da se za so ki z pa tudi s bi kot po ne od o ali bo ni še pri do kar sem lahko vse", "čšž" },
    { "hr", LATIN, "i je u na se da za su od s koji a iz o kao što ne to bi će te po koja ali biti sve može ili", "čćđšž" },
    { "ro", LATIN, "de și în a la cu că din pe o un nu care este mai pentru sunt fi o al ale ca dar se au sau prin între după", "ăâîșțşţ" },
    { "hu", LATIN, "a az és hogy nem is egy van meg volt de ez csak már el mint ha kell még ki azt vagy minden lehet nagyon", "őűáéíóöúü" },
    { "tr", LATIN, "ve bir bu da de için ile çok olarak daha olan gibi en kadar ne ama var o değil sonra ya her olduğu şey ben", "ğışçöüİ" },
    { "vi", LATIN, "và của là có không cho một các được trong người những với này khi đã để đến từ tôi cũng về như ở đó ra", "đươăạảấầẩậắặẹẻẽếềểệỉịọỏốồổộớờởợụủứừửựỳỵỷỹ" },
    { "id", LATIN, "yang dan di dengan untuk dari ini itu dalam tidak pada adalah akan ke juga oleh saya mereka bisa ada atau karena kami dapat lebih telah", "" },
    { "tl", LATIN, "ang ng sa mga na ay at ito ako si ni para hindi siya kanyang mo ko isang ka may kung nang pag ba lang tayo", "" },
    { "sw", LATIN, "ya na wa kwa ni katika za la cha kuwa hii yake kama si watu hiyo pia au lakini bila kila huu vya mtu wote haki hao", "" },
    { "so", LATIN, "waa iyo in ka oo ku la uu ay ah soo wax isku aan dadka sida si waxaa ee leh kale xaq qof kasta dhan", "" },
    { "sq", LATIN, "të e në dhe i për me që një është nga si më se ka do janë u ishte nuk por duke kjo ky ose", "ëç" },
    { "lt", LATIN, "ir yra kad į su iš tai kaip bet ne o per jis buvo apie prie už nuo arba jo taip gali jau dėl turi", "ąčęėįšųūž" },
    { "lv", LATIN, "un ir ar no uz ka par bet tas kas lai pie kā ne arī vai tā bija viņš tiek pēc jo var savu gan", "āčēģīķļņšūž" },
    { "cy", LATIN, "y yr a i yn o ar gan bod mae ei eu am fel ond oedd wedi wrth hefyd hyn neu gyda nid cael ac bydd", "ŵŷ" },
    { "ca", LATIN, "de la i el que a en les del un per els amb una és al no dels com més però són seva aquest també o ha seu", "àèéíòóúïç" },
    { "ru", CYRILLIC, "и в не на что он с как это по но из у за то же все она так его от к о для мы был бы только или", "ыэъё" },
    { "uk", CYRILLIC, "і в не на що з та до це як за але від у й про він його я для або ми все якщо ви був вона бути є", "іїєґ" },
    { "bg", CYRILLIC, "и на да се за от с не е в по това като са че до но ще или си той един което му са има при така", "ъщ" },
    { "mk", CYRILLIC, "и на во да се за од со не е дека што го како ја но ќе или по тоа кои биде беше сите има при", "ѓќѕјљњџ" },
    { "ar", ARABIC, "في من على أن إلى التي ما لا عن هذا هذه كان الذي ذلك مع و أو كل هو قد بين بعد ولا كما لم", "ةىأإؤئ" },
    { "fa", ARABIC, "و در به از که این را با است برای آن یک خود تا بر هم می های شده کرد او اما یا شود دارد ها", "پچژگی" },
    { "ur", ARABIC, "کے میں کی ہے اور سے کا کو اس نے پر ہیں یہ کہ ایک بھی تھا ہو جو وہ گیا کر نہیں لیے تو کسی", "ٹڈڑںےہھ" },
    { "hi", DEVANAGARI, "के में है की और से को का कि पर यह एक हैं ने भी इस लिए नहीं जो था तो हो कर या अपने सभी", "" },
    { "mr", DEVANAGARI, "आणि आहे या व तो हा ही च्या होते नाही असे करून मध्ये आहेत की एक त्या ते झाला केले म्हणून सर्व", "ळ" },
    { "ne", DEVANAGARI, "छ र को मा लाई भएको हो पनि गर्न गरेको यो छन् एक थियो भने तथा गर्ने बाट सबै हुन्छ प्रत्येक नै", "" },
};
// clang-format on

static bool word_in(const char *list, struct span word)
{
    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == word.len && memcmp(at, word.s, word.len) == 0)
            return true;
    return false;
}

/* The language of a script by its words and letters. A word that several languages use counts less for each. */
static const char *by_words(struct span text, enum script script)
{
    double score[ARRAY_SIZE(languages)] = { 0 };
    size_t best = ARRAY_SIZE(languages), at = 0;
    for (struct span word = { NULL }; at < text.len;) {
        size_t end = at, next = at;
        int32_t cp = text_next(text, &next);
        bool mark = cp >= 0x900 && cp <= 0x97F;    // vowel signs belong to the word
        if (!char_is_word(cp) && !mark) {
            at = next;
            continue;
        }
        for (next = at; next < text.len && (cp = text_next(text, &next), char_is_word(cp) || (cp >= 0x900 && cp <= 0x97F));)
            end = next;
        word = span_of(text.s + at, end - at);
        int n = 0;
        bool has[ARRAY_SIZE(languages)];
        for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
            n += has[i] = languages[i].script == script && word_in(languages[i].words, word);
        for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
            score[i] += has[i] ? 1.0 / n : 0;
        at = end;
    }
    for (size_t i = 0; i < ARRAY_SIZE(languages); i++) {
        if (languages[i].script != script)
            continue;
        struct span letters = span_str(languages[i].letters);
        struct span piece;
        bool groups = span_has(letters, " ");
        for (size_t k = 0, from = 0; groups ? text_word(letters, &k, &piece) : text_next(letters, &k) >= 0; from = k)
            score[i] += 0.15 * (double)span_count(text, groups ? piece : span_of(letters.s + from, k - from));
        if (best == ARRAY_SIZE(languages) || score[i] > score[best])
            best = i;
    }
    return languages[best].language;
}

const char *language_of(struct pool *p, struct span text)
{
    int64_t n[OTHERS] = { 0 }, n_range[ARRAY_SIZE(ranges)] = { 0 };
    int32_t cp;
    for (size_t at = 0; (cp = text_next(text, &at)) >= 0;)
        for (size_t i = 0; i < ARRAY_SIZE(ranges); i++)
            if (cp >= ranges[i].from && cp <= ranges[i].to) {
                n_range[i]++;
                if (ranges[i].script != OTHERS)
                    n[ranges[i].script]++;
                break;
            }
    const char *language = NULL;
    int64_t most = 0;
    enum script script = OTHERS;
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++)
        if (ranges[i].script == OTHERS && n_range[i] * 2 > most) {    // their characters stand for more than a letter each
            most = n_range[i] * 2;
            language = ranges[i].language;
        }
    for (int s = 0; s < OTHERS; s++)
        if (n[s] * (s == HAN || s == KANA ? 3 : 1) > most) {
            most = n[s] * (s == HAN || s == KANA ? 3 : 1);
            script = (enum script)s;
            language = NULL;
        }
    if (most == 0 || language)
        return language;
    if (script == HAN || script == KANA)
        return n[KANA] * 10 > n[HAN] ? "ja" : "zh-cn";
    return by_words(text_lower(p, text), script);
}
