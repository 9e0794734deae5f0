//! The faults of all stores, in the same words.
//!
//! **Rule:** "did not answer" (Q1201) and "said no" (Q1202) are never confused.

use std::time::Duration;

use quorate_faults::{Code, Fault, Result};

/// What a call does, for its faults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// In words: "read keys".
    pub(crate) words: &'static str,
    /// Whether it may have changed something when no answer came.
    pub(crate) changes: bool,
}

impl Attempt {
    pub(crate) const LOOK: Attempt = Attempt { words: "read keys", changes: false };
    pub(crate) const WATCH: Attempt = Attempt { words: "watch keys", changes: false };
    pub(crate) const TXN: Attempt = Attempt { words: "change keys", changes: true };
    pub(crate) const GRANT: Attempt = Attempt { words: "get a lease", changes: true };
    pub(crate) const RENEW: Attempt = Attempt { words: "keep a lease", changes: false };
    pub(crate) const END: Attempt = Attempt { words: "end a lease", changes: true };
    pub(crate) const REGISTER: Attempt = Attempt { words: "register a service", changes: true };
    pub(crate) const INSTANCES: Attempt = Attempt { words: "list a service", changes: false };

    /// The store did not answer.
    pub(crate) fn silent(self, place: &str, why: impl std::fmt::Display) -> Fault {
        let attempt = format!("cannot {}: the store at `{place}` {why}", self.words);
        let hint = "see that it is up, has a leader and can be reached from here";
        let hint = match self.changes {
            true => format!("it is not known whether the change took effect: look before you repeat it; {hint}"),
            false => hint.to_owned(),
        };
        Fault::new(Code::CoordinationSilent, attempt).hint(hint)
    }

    /// The store said no.
    pub(crate) fn refused(self, place: &str, said: impl Into<String>) -> Fault {
        let attempt = format!("the store at `{place}` refused to {}", self.words);
        Fault::new(Code::CoordinationRefused, attempt)
            .hint("give it a user or token that may use the namespace: `quorate explain Q1202`")
            .caused_by(said.into())
    }

    /// What came cannot be what was asked for.
    pub(crate) fn unreadable(self, place: &str, why: impl std::fmt::Display) -> Fault {
        let attempt = format!("cannot {}: the answer of `{place}` cannot be understood: {why}", self.words);
        Fault::new(Code::CoordinationUnreadable, attempt)
            .hint("check the address, and that nobody else writes into the namespace")
    }

    pub(crate) fn too_large(self, place: &str, said: impl Into<String>) -> Fault {
        let attempt = format!("cannot {}: it is larger than the store at `{place}` takes", self.words);
        Fault::new(Code::CoordinationTooLarge, attempt)
            .hint("keep large things elsewhere, and only their name in the store")
            .caused_by(said.into())
    }

    pub(crate) fn too_much(self, place: &str) -> Fault {
        let attempt = format!("cannot {}: there is more at `{place}` than can be read at once", self.words);
        Fault::new(Code::CoordinationTooMuch, attempt).hint("remove what does not belong into the namespace")
    }

    pub(crate) fn lease_gone(self, place: &str) -> Fault {
        let attempt = format!("cannot {}: the lease is gone at `{place}`", self.words);
        Fault::new(Code::LeaseGone, attempt).hint("get a new one; what the old one held is given up")
    }

    /// Ends a call that takes too long.
    pub(crate) async fn within<T>(
        self,
        limit: Duration,
        place: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(self.silent(place, format!("did not answer within {limit:?}"))),
        }
    }
}
