//! Short texts that an operator can read aloud: short join codes, approval secrets and fingerprints, 80 bits each, in Crockford's
//! base32.
//!
//! ```text
//!   K7QM-2XPA-9TRW-CE4D-5        80 random bits, and a character that shows a typo
//! ```
//!
//! **Rule:** a text that was mistyped is refused before anything is sent; letters that look alike are the same letter.

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use sha2::{Digest, Sha256};

use super::code::{CodeError, JoinCode, PREFIX, TEXT_MAX};
use super::{Newcomer, Role, TOKEN_BYTES};

/// 80 bits: 2^80 attempts offline are out of reach for the time that a code holds, and 16 characters can be read aloud.
pub const SHORT_BYTES: usize = 10;
/// Characters that hold them.
const SYMBOLS: usize = SHORT_BYTES * 8 / 5;
/// Characters of a group.
const GROUP: usize = 4;
/// Without I, L, O and U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Added to the check character of approval secrets, so that a secret is not taken for a code, nor a code for a secret.
const SECRET_MARK: u8 = 0b1_0101;

/// What an operator typed as a join code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypedCode {
    /// All of it in one line.
    Long(JoinCode),
    /// A secret alone: where the inviting node is has to be given with it.
    Short(ShortCode),
}

impl TypedCode {
    /// Reads either form; blanks, hyphens and case do not matter in a short one.
    pub fn read(text: &str) -> Result<TypedCode, CodeError> {
        if text.len() > TEXT_MAX * 4 {
            return Err(CodeError::Long);
        }
        let mut shown = text.chars().filter(|c| !c.is_whitespace());
        if PREFIX.chars().all(|c| shown.next() == Some(c)) {
            return JoinCode::decode(text).map(TypedCode::Long);
        }
        read(text, 0).map(|bytes| TypedCode::Short(ShortCode(bytes)))
    }
}

/// A join code that an operator can read aloud.
#[derive(Clone, PartialEq, Eq)]
pub struct ShortCode([u8; SHORT_BYTES]);

impl std::fmt::Debug for ShortCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShortCode(…)")
    }
}

impl ShortCode {
    /// The code with these random bits.
    pub fn new(random: [u8; SHORT_BYTES]) -> ShortCode {
        ShortCode(random)
    }

    /// The text.
    pub fn encode(&self) -> String {
        write(&self.0, Some(0))
    }

    /// The key of the proofs that both sides have the code.
    pub fn key(&self) -> [u8; 32] {
        derived("quorate short code key 1", &self.0)
    }

    /// The one-time token of the invitation. It is sent only to a node that has proved the code.
    pub fn token(&self) -> [u8; TOKEN_BYTES] {
        let mut token = [0; TOKEN_BYTES];
        token.iter_mut().zip(derived("quorate short code token 1", &self.0)).for_each(|(to, from)| *to = from);
        token
    }
}

/// The second secret of an invitation of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct ApprovalSecret([u8; SHORT_BYTES]);

impl std::fmt::Debug for ApprovalSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApprovalSecret(…)")
    }
}

impl ApprovalSecret {
    /// The secret with these random bits.
    pub fn new(random: [u8; SHORT_BYTES]) -> ApprovalSecret {
        ApprovalSecret(random)
    }

    /// The text.
    pub fn encode(&self) -> String {
        write(&self.0, Some(SECRET_MARK))
    }

    /// Reads what an operator typed.
    pub fn read(text: &str) -> Result<ApprovalSecret, CodeError> {
        read(text, SECRET_MARK).map(ApprovalSecret)
    }

    /// What an invitation keeps of it.
    pub fn hash(&self) -> String {
        hex(&derived("quorate approval secret 1", &self.0))
    }

    /// The fault of a text that is none.
    pub fn fault(error: CodeError) -> Fault {
        Fault::new(Code::JoinCodeInvalid, "this is no approval secret")
            .hint("it is the line after `secret:` that `quorate peer invite` printed; without it, the join waits for approval")
            .caused_by(error)
    }
}

/// What an operator compares before approving a node: the same on both sides for one attempt of one node, and for no other.
pub fn fingerprint(cluster: &str, role: Role, claim: &str, newcomer: &Newcomer) -> String {
    let mut hash = Sha256::new();
    let words = ["quorate join fingerprint 1", cluster, role.word(), claim, &newcomer.name, &newcomer.address];
    for word in words {
        hash.update(u64::try_from(word.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(word);
    }
    let mut bytes = [0; SHORT_BYTES];
    bytes.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    write(&bytes, None)
}

/// Whether two texts are the same fingerprint, however they were typed.
pub fn is_same_fingerprint(one: &str, other: &str) -> bool {
    matches!((symbols(one), symbols(other)), (Ok(one), Ok(other)) if one == other && one.len() == SYMBOLS)
}

fn derived(purpose: &str, secret: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(purpose);
    hash.update([0]);
    hash.update(secret);
    hash.finalize().into()
}

/// In groups. `mark`: with a check character, to which this is added.
fn write(bytes: &[u8; SHORT_BYTES], mark: Option<u8>) -> String {
    let all = bytes.iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
    let symbol = |at: usize| u8::try_from(all >> (5 * (SYMBOLS - 1 - at)) & 31).unwrap_or_default();
    let mut symbols: Vec<u8> = (0..SYMBOLS).map(symbol).collect();
    symbols.extend(mark.map(|mark| check_of(&symbols) ^ mark));
    let mut text = String::with_capacity(SYMBOLS * 2);
    for (at, symbol) in symbols.into_iter().enumerate() {
        if at > 0 && at % GROUP == 0 {
            text.push('-');
        }
        text.extend(ALPHABET.get(usize::from(symbol)).map(|byte| char::from(*byte)));
    }
    text
}

fn read(text: &str, mark: u8) -> Result<[u8; SHORT_BYTES], CodeError> {
    let symbols = symbols(text)?;
    let (check, symbols) = match symbols.split_last() {
        None => return Err(CodeError::Other),
        Some((check, symbols)) if symbols.len() == SYMBOLS => (*check, symbols),
        Some((_, symbols)) => return Err(CodeError::Characters(symbols.len() + 1)),
    };
    match check ^ check_of(symbols) {
        right if right == mark => {}
        SECRET_MARK => return Err(CodeError::Secret),
        0 => return Err(CodeError::Code),
        _ => return Err(CodeError::Typo),
    }
    let all = symbols.iter().fold(0_u128, |all, symbol| all << 5 | u128::from(*symbol));
    let mut bytes = [0; SHORT_BYTES];
    bytes
        .iter_mut()
        .zip(all.to_be_bytes().into_iter().skip(size_of::<u128>() - SHORT_BYTES))
        .for_each(|(to, from)| *to = from);
    Ok(bytes)
}

/// The values of the characters, without blanks and hyphens.
fn symbols(text: &str) -> Result<Vec<u8>, CodeError> {
    if text.len() > TEXT_MAX {
        return Err(CodeError::Long);
    }
    let shown = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '-' | '\u{2010}'..='\u{2015}'));
    let value = |c: char| {
        let c = match c.to_ascii_uppercase() {
            'O' => '0',
            'I' | 'L' => '1',
            c => c,
        };
        let at = ALPHABET.iter().position(|known| char::from(*known) == c);
        at.and_then(|at| u8::try_from(at).ok()).ok_or(CodeError::Other)
    };
    shown.map(value).collect()
}

/// A sum over the field of 32 elements, in which every place has another factor: one changed character is always noticed, and so
/// are two that were exchanged.
fn check_of(symbols: &[u8]) -> u8 {
    // x^5 + x^2 + 1 is primitive: the powers of x are different for 31 places.
    let times_x = |value: u8| if value & 0b1_0000 == 0 { value << 1 } else { (value << 1 & 31) ^ 0b101 };
    symbols.iter().fold(0, |sum, symbol| times_x(sum ^ symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: [u8; SHORT_BYTES] = [0x9c, 0xf3, 0x41, 0x75, 0xaa, 0x4b, 0x71, 0xc7, 0x38, 0x8d];

    fn code() -> ShortCode {
        ShortCode::new(RANDOM)
    }

    #[test]
    fn reads_a_code_back_as_it_is_read_aloud_and_typed() {
        let text = code().encode();
        assert_eq!(text, "KKSM-2XDA-9DRW-EE4D-D");
        assert_eq!((text.len(), text.matches('-').count()), (21, 4), "{text}");
        let typed = [
            text.clone(),
            text.to_lowercase(),
            text.replace('-', " "),
            text.replace('-', ""),
            format!("  {text}\r\n"),
            text.replace('-', "\u{2013}"),
        ];
        for typed in typed {
            assert_eq!(TypedCode::read(&typed), Ok(TypedCode::Short(code())), "{typed}");
        }
        for (written, typed) in [('0', "O"), ('0', "o"), ('1', "I"), ('1', "l"), ('1', "L")] {
            let zeros = ShortCode::new([0; SHORT_BYTES]).encode();
            let ones = ShortCode::new([0x08, 0x42, 0x10, 0x84, 0x21, 0x08, 0x42, 0x10, 0x84, 0x21]).encode();
            let text = if written == '0' { zeros } else { ones };
            assert!(text.contains(written), "{text}");
            assert!(TypedCode::read(&text.replace(written, typed)).is_ok(), "{text}, typed with {typed}");
        }
        assert!(!format!("{:?}", code()).contains("156"), "the code is not shown");
    }

    #[test]
    fn notices_every_changed_character_and_every_two_that_were_exchanged() {
        let no_code: fn(&str) -> bool = |text| TypedCode::read(text).is_err();
        let no_secret: fn(&str) -> bool = |text| ApprovalSecret::read(text).is_err();
        let texts = [(code().encode(), no_code), (ApprovalSecret::new(RANDOM).encode(), no_secret)];
        for (text, is_refused) in texts {
            assert!(!is_refused(&text));
            let places: Vec<usize> = (0..text.len()).filter(|at| text.as_bytes()[*at] != b'-').collect();
            for at in &places {
                for symbol in ALPHABET {
                    let mut changed = text.clone().into_bytes();
                    if std::mem::replace(&mut changed[*at], *symbol) != *symbol {
                        let changed = String::from_utf8(changed).unwrap();
                        assert!(is_refused(&changed), "{changed}");
                    }
                }
            }
            for (one, other) in places.iter().flat_map(|one| places.iter().map(move |other| (*one, *other))) {
                let mut exchanged = text.clone().into_bytes();
                exchanged.swap(one, other);
                let exchanged = String::from_utf8(exchanged).unwrap();
                assert!(exchanged == text || is_refused(&exchanged), "{exchanged}");
            }
        }
        let text = code().encode();
        assert_eq!(TypedCode::read(&text[..text.len() - 2]), Err(CodeError::Characters(16)));
        assert_eq!(TypedCode::read(&format!("{text}7")), Err(CodeError::Characters(18)));
        assert_eq!(TypedCode::read("quorate-join-AQEA"), Err(CodeError::Damaged));
        assert_eq!(TypedCode::read(""), Err(CodeError::Other));
        assert_eq!(TypedCode::read("K7QM-2XPA-U"), Err(CodeError::Other));
        assert_eq!(TypedCode::read(&"0".repeat(1025)), Err(CodeError::Long));
    }

    #[test]
    fn tells_a_secret_from_a_code() {
        let secret = ApprovalSecret::new(RANDOM);
        assert_eq!(ApprovalSecret::read(&secret.encode().to_lowercase()), Ok(secret.clone()));
        assert_eq!(TypedCode::read(&secret.encode()), Err(CodeError::Secret));
        assert_eq!(ApprovalSecret::read(&code().encode()), Err(CodeError::Code));
        assert_eq!(ApprovalSecret::read("quorate-join-AQEA"), Err(CodeError::Other));
        assert!(!secret.hash().contains(&hex(&RANDOM)));
    }

    #[test]
    fn derives_a_key_and_a_token_that_say_nothing_of_each_other() {
        let (key, token) = (code().key(), code().token());
        assert!(!key.starts_with(&token));
        assert_ne!(ShortCode::new([1; SHORT_BYTES]).key(), key);
        assert_ne!(ShortCode::new([1; SHORT_BYTES]).token(), token);
    }

    #[test]
    fn every_part_of_an_attempt_changes_its_fingerprint() {
        let newcomer = |name: &str, address: &str| Newcomer {
            name: name.to_owned(),
            address: address.to_owned(),
            data_dir: "/d".to_owned(),
        };
        let print = fingerprint("t", Role::Server, "c", &newcomer("n2", "10.0.0.2"));
        assert_eq!(print.len(), 19, "{print}");
        let others = [
            fingerprint("u", Role::Server, "c", &newcomer("n2", "10.0.0.2")),
            fingerprint("t", Role::External, "c", &newcomer("n2", "10.0.0.2")),
            fingerprint("t", Role::Server, "d", &newcomer("n2", "10.0.0.2")),
            fingerprint("t", Role::Server, "c", &newcomer("n3", "10.0.0.2")),
            fingerprint("t", Role::Server, "c", &newcomer("n2", "10.0.0.3")),
            fingerprint("t", Role::Server, "cn", &newcomer("2", "10.0.0.2")),
        ];
        for other in others {
            assert!(!is_same_fingerprint(&print, &other));
        }
        assert!(is_same_fingerprint(&print, &print.to_lowercase().replace('-', " ")));
        assert!(!is_same_fingerprint("", "") && !is_same_fingerprint("0", "0"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text: String, typed in "[0-9A-Za-z -]{0,40}", random: [u8; SHORT_BYTES]) {
            let _ = (TypedCode::read(&text), ApprovalSecret::read(&text), is_same_fingerprint(&text, &typed));
            let _ = (TypedCode::read(&typed), ApprovalSecret::read(&typed));
            let code = ShortCode::new(random);
            assert_eq!(TypedCode::read(&code.encode()), Ok(TypedCode::Short(code)));
            let secret = ApprovalSecret::new(random);
            assert_eq!(ApprovalSecret::read(&secret.encode()), Ok(secret));
        }
    }
}
