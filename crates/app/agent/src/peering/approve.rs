//! Nodes that were invited as servers and have no second secret wait here, on the node that invited them, until an operator approves
//! them.
//!
//! **Invariant:** an approval is for one attempt of one node: for its claim, name and address, of which the fingerprint is made that both
//! sides show. It is on disk before the node learns of it.

use quorate_faults::{Code, Fault};
use quorate_plan::certificates::is_host_name;
use quorate_plan::peering::{Invitation, fingerprint, is_same_fingerprint};
use tracing::info;

use super::messages::{ApproveRequest, JoinAsk, WaitingShown};
use super::store::lock;
use crate::peers::Api;
use crate::turn::now_ms;

/// Nodes that are shown at once. Who was silent for the longest time gives its place up.
const WAITING_MAX: usize = 16;

/// Nodes that wait. Those that do not say so any more are shown until their codes end: an agent of an earlier release asks once.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<Waits>);

#[derive(Debug)]
struct Waits {
    /// The token of its invitation, as that is kept.
    invitation: String,
    expires_ms: u64,
    seen_ms: u64,
    shown: WaitingShown,
}

impl Waiting {
    /// It waits, or still does.
    pub(super) fn note(&mut self, invitation: &Invitation, asked: &JoinAsk, print: String, from: String, now_ms: u64) {
        let (name, address) = (&asked.newcomer.name, &asked.newcomer.address);
        // What is shown to an operator is a name and an address, and nothing else.
        if !is_host_name(name) || (address.parse::<std::net::IpAddr>().is_err() && !is_host_name(address)) {
            return;
        }
        let same = |one: &&mut Waits| one.shown.fingerprint == print && one.invitation == invitation.token;
        if let Some(known) = self.0.iter_mut().find(same) {
            known.seen_ms = now_ms;
            return;
        }
        self.0.retain(|one| now_ms < one.expires_ms);
        if self.0.len() >= WAITING_MAX {
            let silent = self.0.iter().enumerate().min_by_key(|(_, one)| one.seen_ms).map(|(at, _)| at);
            silent.map(|at| self.0.remove(at));
        }
        info!(node = name, from, fingerprint = print, "a node that was invited waits for approval");
        self.0.push(Waits {
            invitation: invitation.token.clone(),
            expires_ms: invitation.expires_ms,
            seen_ms: now_ms,
            shown: WaitingShown {
                name: name.clone(),
                address: address.clone(),
                role: asked.role,
                fingerprint: print,
                from,
                since_ms: now_ms,
            },
        });
    }

    /// Everyone who waits.
    pub(super) fn shown(&self, now_ms: u64) -> Vec<WaitingShown> {
        self.0.iter().filter(|one| now_ms < one.expires_ms).map(|one| one.shown.clone()).collect()
    }

    /// The one with this name and fingerprint, and its invitation.
    fn find(&self, request: &ApproveRequest, now_ms: u64) -> Result<(String, WaitingShown), Fault> {
        let named: Vec<&Waits> =
            self.0.iter().filter(|one| one.shown.name == request.name && now_ms < one.expires_ms).collect();
        let same = |one: &&&Waits| is_same_fingerprint(&one.shown.fingerprint, &request.fingerprint);
        let nothing = |why: &str| {
            Fault::new(Code::NothingToApprove, format!("cannot approve `{}`: {why}", request.name.escape_debug()))
                .hint("see who waits on this server: `quorate peer status`")
        };
        match named.iter().find(same) {
            Some(one) => Ok((one.invitation.clone(), one.shown.clone())),
            None if named.is_empty() => Err(nothing("no node of this name waits here")),
            None => Err(nothing("the node of this name that waits here has another fingerprint")),
        }
    }
}

/// The fingerprint of an attempt.
pub(super) fn print_of(api: &Api, asked: &JoinAsk) -> String {
    fingerprint(&api.node.spec.token, asked.role, &asked.claim, &asked.newcomer)
}

/// Lets a node that waits become a server.
pub(crate) fn approve(api: &Api, request: &ApproveRequest) -> Result<WaitingShown, Fault> {
    let now = now_ms();
    let (invitation, shown) = lock(&api.peering.waiting).find(request, now)?;
    let approved = api.peering.change(|kept| kept.invitations.approve(&invitation, &shown.fingerprint, now))?;
    lock(&api.peering.waiting).0.retain(|one| one.invitation != invitation || one.shown != shown);
    if !approved {
        let what = format!("cannot approve `{}`: its code was used, or has ended", shown.name);
        return Err(Fault::new(Code::NothingToApprove, what).hint("make another one: `quorate peer invite`"));
    }
    info!(node = shown.name, fingerprint = shown.fingerprint, "an operator approved a node that was invited");
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use quorate_plan::peering::{Invitations, Newcomer, Role, Side};

    use super::*;

    fn asked(name: &str) -> JoinAsk {
        let newcomer = Newcomer { name: name.to_owned(), address: "10.0.0.2".to_owned(), data_dir: "/d".to_owned() };
        let side = Side {
            api: (1, 1),
            etcd: None,
            now_ms: 1,
            cluster: None,
            state_dir: String::new(),
            taken: Vec::new(),
            unfit: Vec::new(),
            fsync_ms: None,
            veto: None,
        };
        JoinAsk {
            token: String::new(),
            claim: "c".to_owned(),
            role: Role::Server,
            side,
            newcomer,
            requests: None,
            secret: None,
        }
    }

    #[test]
    fn shows_each_attempt_once_and_a_flood_of_them_pushes_out_the_silent_ones() {
        let mut all = Invitations::default();
        all.add(b"secret", Role::Server, 5000, 1000);
        let (one, mut waiting) = (&all.all[0], Waiting::default());
        for now in [1000, 1100] {
            waiting.note(one, &asked("n2"), "F".to_owned(), "10.0.0.2".to_owned(), now);
        }
        waiting.note(one, &asked("not\na name"), "X".to_owned(), "10.0.0.2".to_owned(), 1100);
        assert_eq!(waiting.shown(1200).len(), 1);
        assert_eq!(waiting.shown(1200)[0].since_ms, 1000);
        for at in 0..40 {
            waiting.note(one, &asked("n3"), format!("G{at}"), "10.0.0.3".to_owned(), 1200);
            waiting.note(one, &asked("n2"), "F".to_owned(), "10.0.0.2".to_owned(), 1300 + at);
        }
        assert_eq!(waiting.shown(1500).len(), WAITING_MAX);
        assert!(waiting.shown(1500).iter().any(|shown| shown.name == "n2"), "who still waits is still shown");
        assert_eq!(waiting.shown(5000), [], "the code has ended");
    }
}
