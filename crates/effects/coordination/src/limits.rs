//! How large things may be, looked at before anything is sent.
//!
//! **Rule:** what one store takes and another does not is said by [`Limits`], not found out by a refusal.

use std::collections::BTreeSet;

use quorate_faults::{Code, Fault, Result};
use quorate_kv::{Change, Scope, Txn};

/// Bytes of a key, without its namespace. Escaped for Consul it may become three times as long, which every web server takes.
pub const KEY_BYTES_MAX: usize = 1024;

/// Bytes of keys and values of one listing: what this process is ready to hold.
pub const LISTING_BYTES_MAX: usize = 64 << 20;

/// Bytes of the name of a lock, service or instance.
pub const NAME_BYTES_MAX: usize = 128;

/// What a store takes in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of keys and values together.
    pub bytes_max: usize,
    /// Conditions and changes together; holding a key counts as two.
    pub operations_max: usize,
}

impl Limits {
    pub(crate) fn check(&self, txn: &Txn) -> Result<()> {
        // Holding a key also asks whether it is there.
        let holds = txn.then.iter().filter(|change| matches!(change, Change::Hold(..))).count();
        let operations = txn.when.len() + txn.then.len() + holds;
        if operations > self.operations_max {
            let most = self.operations_max;
            let attempt = format!("cannot run a transaction of {operations} operations: the store takes {most}");
            return Err(Fault::new(Code::CoordinationTooLarge, attempt).hint("divide it"));
        }
        let mut changed = BTreeSet::new();
        for change in &txn.then {
            check_key(change.key())?;
            if !changed.insert(change.key()) {
                let attempt = format!("cannot change key `{}` twice in one transaction", shown(change.key()));
                return Err(Fault::new(Code::CoordinationKey, attempt).hint("give each key its last value only"));
            }
        }
        txn.when.iter().try_for_each(|compare| check_key(compare.key()))?;
        let bytes: usize = txn.then.iter().map(size).sum();
        if bytes > self.bytes_max {
            let attempt = format!("cannot write {bytes} bytes at once: the store takes {}", self.bytes_max);
            return Err(Fault::new(Code::CoordinationTooLarge, attempt)
                .hint("keep large things elsewhere, and only their name in the store"));
        }
        Ok(())
    }
}

fn size(change: &Change) -> usize {
    match change {
        Change::Put(key, value) | Change::Hold(key, value, _) => key.len() + value.len(),
        Change::Delete(key) => key.len(),
    }
}

/// A key may be anything but nothing, and not too long.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let attempt = format!("cannot use a key of {} bytes", key.len());
        let hint = format!("a key has 1 to {KEY_BYTES_MAX} bytes");
        return Err(Fault::new(Code::CoordinationKey, attempt).hint(hint));
    }
    Ok(())
}

pub(crate) fn check_scope(scope: &Scope) -> Result<()> {
    match scope {
        Scope::Key(key) => check_key(key),
        Scope::Prefix(prefix) if prefix.is_empty() => Ok(()),
        Scope::Prefix(prefix) => check_key(prefix),
    }
}

/// A name stands in keys, URLs and DNS names, so it has only letters that all of these take.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.bytes().all(fits) {
        let attempt = format!("cannot use `{}` as the name of a {what}", shown(name.as_bytes()));
        let hint = format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `.` or `_`, and begins with no dot");
        return Err(Fault::new(Code::CoordinationKey, attempt).hint(hint));
    }
    Ok(())
}

/// A key for a message: visible, and not too long.
pub(crate) fn shown(key: &[u8]) -> String {
    let text = quorate_kv::escape(key);
    match text.len() > 200 {
        true => format!("{}…", &text[..200]),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits { bytes_max: 10, operations_max: 2 };

    fn put(key: &str, value: &str) -> Change {
        Change::Put(key.into(), value.into())
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_sent() {
        let code = |then: Vec<Change>| SMALL.check(&Txn { when: Vec::new(), then }).map_err(|fault| fault.code());
        assert_eq!(code(vec![put("k", "123456789")]), Ok(()));
        assert_eq!(code(vec![put("k", "1234567890")]), Err(Code::CoordinationTooLarge));
        assert_eq!(code(vec![put("a", ""), put("b", ""), put("c", "")]), Err(Code::CoordinationTooLarge));
        assert_eq!(code(vec![put("a", "1"), put("a", "2")]), Err(Code::CoordinationKey));
        assert_eq!(code(vec![put("", "1")]), Err(Code::CoordinationKey));
    }

    #[test]
    fn names_have_only_letters_that_keys_urls_and_dns_take() {
        assert!(check_name("lock", "bootstrap-1.a_b").is_ok());
        for name in ["", "a/b", "..", "a b", "\u{e9}", &"x".repeat(129)] {
            assert!(check_name("lock", name).is_err(), "{name}");
        }
    }
}
