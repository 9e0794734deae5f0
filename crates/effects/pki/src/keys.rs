//! Private keys as PEM files: those of nodes as they are, those of authorities encrypted.
//!
//! PKCS#8 with PBES2, as `openssl pkey` reads it. scrypt with N = 2^14, r = 8, p = 5 costs an attacker what N = 2^17, p = 1
//! does, in the 16 MiB that OpenSSL allows itself.

use std::path::Path;

use aws_lc_rs::rand;
use pkcs8::der::{Decode, SecretDocument};
use pkcs8::pkcs5::pbes2::Parameters;
use pkcs8::pkcs5::scrypt;
use pkcs8::{EncryptedPrivateKeyInfoRef, LineEnding, PrivateKeyInfoRef};
use quorate_faults::{Code, Fault};
use rcgen::KeyPair;
use rustls::pki_types::PrivatePkcs8KeyDer;
use zeroize::Zeroizing;

use crate::passphrase::Passphrase;

const LOG_N: u8 = 14;
const R: u32 = 8;
const P: u32 = 5;

const ENCRYPTED_LABEL: &str = "ENCRYPTED PRIVATE KEY";

/// A new key, P-256: what every etcd, browser and token understands.
pub(crate) fn generate() -> Result<KeyPair, Fault> {
    let generated = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256);
    generated.map_err(|error| Fault::new(Code::Internal, "cannot make a key").caused_by(error))
}

/// The text of a key's file, encrypted where there is a passphrase.
pub(crate) fn encode(key: &KeyPair, passphrase: Option<&Passphrase>) -> Result<Zeroizing<String>, Fault> {
    let Some(passphrase) = passphrase else { return Ok(Zeroizing::new(key.serialize_pem())) };
    let fail = |what: String| Fault::new(Code::Internal, "cannot encrypt a key").caused_by(what);
    let (mut salt, mut iv) = ([0; 16], [0; 16]);
    rand::fill(&mut salt).and_then(|()| rand::fill(&mut iv)).map_err(|_| fail("no random numbers".to_owned()))?;
    let cost = scrypt::Params::new(LOG_N, R, P).map_err(|error| fail(error.to_string()))?;
    let parameters = Parameters::generate_scrypt_aes256cbc(cost, &salt, iv).map_err(|error| fail(error.to_string()))?;
    let info = PrivateKeyInfoRef::from_der(key.serialized_der()).map_err(|error| fail(error.to_string()))?;
    let sealed = info.encrypt_with_params(parameters, passphrase.bytes()).map_err(|error| fail(error.to_string()))?;
    sealed.to_pem(ENCRYPTED_LABEL, LineEnding::LF).map_err(|error| fail(error.to_string()))
}

/// Whether a key's file asks for a passphrase.
pub(crate) fn is_encrypted(bytes: &[u8]) -> bool {
    let mark = format!("-----BEGIN {ENCRYPTED_LABEL}-----");
    bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
}

/// Reads a key's file.
pub(crate) fn decode(bytes: &[u8], path: &Path, passphrase: Option<&Passphrase>) -> Result<KeyPair, Fault> {
    let shown = path.display();
    let fail = |what: String| {
        Fault::new(Code::CertificateMissing, format!("cannot use the key `{shown}`"))
            .hint("it must be a PEM file with a private key, as `quorate ca` makes it")
            .caused_by(what)
    };
    let text = std::str::from_utf8(bytes).map_err(|error| fail(error.to_string()))?;
    if !is_encrypted(bytes) {
        return KeyPair::from_pem(text).map_err(|error| fail(error.to_string()));
    }
    let wrong = |what: &str, hint: &str| Fault::new(Code::CaPassphrase, format!("{what} `{shown}`")).hint(hint);
    let Some(passphrase) = passphrase else {
        return Err(wrong("there is no passphrase for", "give the file that holds it, with `--passphrase-file`"));
    };
    let (_, sealed) = SecretDocument::from_pem(text.trim()).map_err(|error| fail(error.to_string()))?;
    let info = EncryptedPrivateKeyInfoRef::from_der(sealed.as_bytes()).map_err(|error| fail(error.to_string()))?;
    let opened = info.decrypt(passphrase.bytes());
    let opened = opened.map_err(|_| wrong("the passphrase does not open", "give the one that `ca init` was given"))?;
    let der = PrivatePkcs8KeyDer::from(opened.as_bytes());
    // With a wrong passphrase one time in some hundred looks right up to here.
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ECDSA_P256_SHA256)
        .map_err(|_| wrong("the passphrase does not open", "give the one that `ca init` was given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passphrase(text: &str) -> Passphrase {
        Passphrase::new(Zeroizing::new(text.to_owned())).expect("a passphrase")
    }

    #[test]
    fn a_key_comes_back_with_its_passphrase_and_with_no_other() {
        let key = generate().expect("a key");
        let path = Path::new("k");
        let plain = encode(&key, None).expect("text");
        assert!(!is_encrypted(plain.as_bytes()));
        assert_eq!(decode(plain.as_bytes(), path, None).expect("read").serialized_der(), key.serialized_der());
        let sealed = encode(&key, Some(&passphrase("correct horse\n"))).expect("text");
        assert!(is_encrypted(sealed.as_bytes()));
        let opened = decode(sealed.as_bytes(), path, Some(&passphrase("correct horse"))).expect("opened");
        assert_eq!(opened.serialized_der(), key.serialized_der());
        for other in [None, Some(passphrase("battery staple"))] {
            let fault = decode(sealed.as_bytes(), path, other.as_ref()).expect_err("refused");
            assert_eq!(fault.code(), Code::CaPassphrase);
        }
    }

    #[test]
    fn no_cut_or_changed_byte_of_a_sealed_key_is_taken_or_panics() {
        let key = generate().expect("a key");
        let sealed = encode(&key, Some(&passphrase("correct horse"))).expect("text");
        let secret = passphrase("correct horse");
        // Each try stretches the passphrase anew, so only some of them.
        for at in (30..sealed.len()).step_by(41) {
            let mut bytes = sealed.as_bytes().to_vec();
            bytes[at] ^= 0x11;
            let read = decode(&bytes, Path::new("k"), Some(&secret));
            assert!(read.is_err_and(|_| true) || bytes == sealed.as_bytes(), "byte {at}");
            assert!(decode(&bytes[..at], Path::new("k"), Some(&secret)).is_err(), "cut at {at}");
        }
    }
}
