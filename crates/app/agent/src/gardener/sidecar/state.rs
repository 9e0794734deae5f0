//! Where the initialization stands: `New`, `Progress`, `Successful`, `Failed`, and `New` again once that was read.
//!
//! **Rule:** whoever asked for the initialization learns its outcome; others see it and take nothing away.

use std::net::IpAddr;

/// What `/initialization/status` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    New,
    Progress,
    Successful,
    Failed,
}

impl Status {
    pub(super) fn word(self) -> &'static str {
        match self {
            Status::New => "New",
            Status::Progress => "Progress",
            Status::Successful => "Successful",
            Status::Failed => "Failed",
        }
    }
}

/// Where it stands, and who asked.
#[derive(Debug)]
pub(super) struct Handshake {
    status: Status,
    asked_by: Option<IpAddr>,
}

impl Handshake {
    pub(super) fn new() -> Handshake {
        Handshake { status: Status::New, asked_by: None }
    }

    /// Whether it begins now.
    pub(super) fn start(&mut self, by: IpAddr) -> bool {
        let begins = self.status == Status::New;
        if begins {
            *self = Handshake { status: Status::Progress, asked_by: Some(by) };
        }
        begins
    }

    /// It is over.
    pub(super) fn finish(&mut self, successful: bool) {
        self.status = if successful { Status::Successful } else { Status::Failed };
    }

    /// What it is. `takes`: this is a reading that uses an outcome up, if it is its asker's.
    pub(super) fn read(&mut self, by: IpAddr, takes: bool) -> Status {
        let status = self.status;
        let over = matches!(status, Status::Successful | Status::Failed);
        if over && takes && self.asked_by == Some(by) {
            *self = Handshake::new();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_used_up_by_whoever_asked_for_it_and_nobody_else() {
        let [wrapper, stranger]: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap()];
        let mut state = Handshake::new();
        assert_eq!(state.read(stranger, true).word(), "New");
        assert!(state.start(wrapper));
        assert!(!state.start(wrapper), "one at a time");
        assert_eq!(state.read(wrapper, true).word(), "Progress");
        for successful in [true, false] {
            state.finish(successful);
            let word = if successful { "Successful" } else { "Failed" };
            assert_eq!(state.read(stranger, true).word(), word);
            assert_eq!(state.read(wrapper, false).word(), word, "a HEAD takes nothing away");
            assert_eq!(state.read(wrapper, true).word(), word);
            assert_eq!(state.read(wrapper, true).word(), "New");
            assert!(state.start(wrapper));
        }
    }
}
