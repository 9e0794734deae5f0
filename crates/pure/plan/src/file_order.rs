//! Orders of operators to take another cluster file, and whether a node may follow one.
//!
//! ```text
//!   operator: token, cluster, hashes of the files it replaces, serial, expiry, hash of the text ── signature ──► every node
//! ```
//!
//! **Invariant:** an order is of one cluster, replaces named files, and counts once: a node never follows a serial that is not higher than
//! the last one that it followed. A node that was away for longer than an order holds follows it only where most members of its own file
//! already act on it.

use quorate_etcd_formats::membership::ClusterId;
use serde::{Deserialize, Serialize};

use crate::certificates::OperatorRole;

/// How long an order may be taken by nodes that did not see it yet, counted from its signature.
pub const HOLDS_MS: u64 = 60 * 60 * 1000;
/// Clocks of an operator and a node may differ by so much.
const CLOCKS_MS: u64 = 5 * 60 * 1000;
/// More files than this are not replaced at once: every node may have one of its own.
pub const REPLACES_MAX: usize = 64;

/// What an operator signs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOrder {
    /// The cluster's token.
    pub token: String,
    /// The cluster; none where nothing is bootstrapped yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Hashes of the files that it replaces, as nodes report them.
    pub replaces: Vec<String>,
    /// Grows with each order.
    pub serial: u64,
    /// When it was signed, in ms since 1970.
    pub signed_ms: u64,
    /// Until when it may be taken, in ms since 1970.
    pub expires_ms: u64,
    /// The SHA-256 of the text, in hex.
    pub text: String,
}

/// The same with the signature, as it travels and is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedFileOrder {
    /// What was signed.
    #[serde(flatten)]
    pub order: FileOrder,
    /// The operator's certificate: DER in base64.
    pub certificate: String,
    /// Over [`FileOrder::message`], by the key of the certificate, in base64.
    pub signature: String,
}

/// The last order that a node followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedOrder {
    /// The order.
    pub signed: SignedFileOrder,
    /// The hash of the file that it brought, as the file is written.
    pub file: String,
}

impl FileOrder {
    /// The bytes that are signed. Each field has a line of its own, and none of them can hold the end of a line.
    pub fn message(&self) -> Option<Vec<u8>> {
        let cluster = self.cluster.map_or_else(|| "none".to_owned(), |cluster| cluster.to_string());
        let fields = [&self.token, &self.text].into_iter().chain(&self.replaces);
        if fields.clone().any(|field| field.contains(['\n', '\r']) || field.is_empty())
            || self.replaces.len() > REPLACES_MAX
        {
            return None;
        }
        let FileOrder { token, serial, signed_ms, expires_ms, text, .. } = self;
        let mut message = format!("quorate file 1\n{token}\n{cluster}\n{serial}\n{signed_ms}\n{expires_ms}\n{text}\n");
        for file in &self.replaces {
            message.push_str(file);
            message.push('\n');
        }
        Some(message.into_bytes())
    }
}

/// What a node compares an order with. The signature, its authority and its revocation were checked before.
#[derive(Debug, Clone)]
pub struct FileOrderInput<'a> {
    /// The cluster's token.
    pub token: &'a str,
    /// The cluster that the node belongs to, if it does.
    pub cluster: Option<ClusterId>,
    /// The hashes of the file that it has: as it is written, and with all members filled in.
    pub own: [&'a str; 2],
    /// The SHA-256 of the text that came with the order.
    pub text: &'a str,
    /// The last order that it followed.
    pub followed: Option<&'a FollowedOrder>,
    /// The role in the operator's certificate.
    pub role: OperatorRole,
    /// What the file changes beyond tunables.
    pub beyond_tunables: &'a [String],
    /// The time of the node, in ms since 1970.
    pub now_ms: u64,
    /// Whether more than half of the members of the node's own file act on this very file.
    pub most_act_on_it: bool,
}

/// Why a node does not follow an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileOrderRefusal {
    /// Another token or cluster.
    #[error("the signature is for another cluster")]
    OtherCluster,
    /// Another text.
    #[error("the signature is for another text")]
    OtherText,
    /// The serial was used.
    #[error("the signature has serial {serial}, and serial {followed} was followed already")]
    Older {
        /// Of the order.
        serial: u64,
        /// Of the node.
        followed: u64,
    },
    /// The node's file is none of those that it replaces.
    #[error("the signature is for the place of another file than this node has")]
    OtherFile,
    /// Its time is over, or has not come.
    #[error("the signature is not valid at this time")]
    Expired,
    /// The role is too weak.
    #[error("role `{role}` may not change {}", .changes.join(", "))]
    Role {
        /// Of the operator.
        role: OperatorRole,
        /// What it would change.
        changes: Vec<String>,
    },
}

/// Decides whether a node may follow an order.
pub fn may_follow_order(order: &FileOrder, input: &FileOrderInput<'_>) -> Result<(), FileOrderRefusal> {
    if order.token != input.token || (input.cluster.is_some() && order.cluster != input.cluster) {
        return Err(FileOrderRefusal::OtherCluster);
    }
    if order.text != input.text {
        return Err(FileOrderRefusal::OtherText);
    }
    let followed = input.followed.map_or(0, |followed| followed.signed.order.serial);
    if order.serial <= followed {
        return Err(FileOrderRefusal::Older { serial: order.serial, followed });
    }
    let named = order.replaces.iter().any(|file| input.own.contains(&file.as_str()));
    // What it has is what the last order brought: it missed those in between. A file that was changed on the machine itself stays.
    let behind = input.followed.is_some_and(|followed| input.own.contains(&followed.file.as_str()));
    if !named && !behind && !input.most_act_on_it {
        return Err(FileOrderRefusal::OtherFile);
    }
    let holds = order.signed_ms <= input.now_ms.saturating_add(CLOCKS_MS)
        && order.expires_ms <= order.signed_ms.saturating_add(HOLDS_MS)
        && input.now_ms < order.expires_ms.saturating_add(CLOCKS_MS);
    if !holds && !input.most_act_on_it {
        return Err(FileOrderRefusal::Expired);
    }
    let refused = |changes: &[String]| Err(FileOrderRefusal::Role { role: input.role, changes: changes.to_vec() });
    match input.role {
        OperatorRole::Admin => Ok(()),
        OperatorRole::Operator if input.beyond_tunables.is_empty() => Ok(()),
        OperatorRole::Operator => refused(input.beyond_tunables),
        OperatorRole::Viewer => refused(&["a cluster file".to_owned()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn order(serial: u64) -> FileOrder {
        FileOrder {
            token: "t".to_owned(),
            cluster: Some(ClusterId(7)),
            replaces: vec!["old".to_owned()],
            serial,
            signed_ms: NOW,
            expires_ms: NOW + HOLDS_MS,
            text: "sha".to_owned(),
        }
    }

    fn followed(serial: u64, file: &str) -> FollowedOrder {
        let signed = SignedFileOrder { order: order(serial), certificate: String::new(), signature: String::new() };
        FollowedOrder { signed, file: file.to_owned() }
    }

    fn input<'a>() -> FileOrderInput<'a> {
        FileOrderInput {
            token: "t",
            cluster: Some(ClusterId(7)),
            own: ["old", "old-full"],
            text: "sha",
            followed: None,
            role: OperatorRole::Admin,
            beyond_tunables: &[],
            now_ms: NOW,
            most_act_on_it: false,
        }
    }

    #[test]
    fn an_order_is_of_one_cluster_one_text_and_one_place() {
        assert_eq!(may_follow_order(&order(1), &input()), Ok(()));
        let other = FileOrder { token: "u".to_owned(), ..order(1) };
        assert_eq!(may_follow_order(&other, &input()), Err(FileOrderRefusal::OtherCluster));
        for cluster in [None, Some(ClusterId(8))] {
            let other = FileOrder { cluster, ..order(1) };
            assert_eq!(may_follow_order(&other, &input()), Err(FileOrderRefusal::OtherCluster));
        }
        let new = FileOrderInput { cluster: None, ..input() };
        assert_eq!(may_follow_order(&order(1), &new), Ok(()), "a new node belongs to none yet");
        let other = FileOrderInput { text: "other", ..input() };
        assert_eq!(may_follow_order(&order(1), &other), Err(FileOrderRefusal::OtherText));
        let edited = FileOrderInput { own: ["edited", "edited-full"], ..input() };
        assert_eq!(may_follow_order(&order(1), &edited), Err(FileOrderRefusal::OtherFile));
    }

    #[test]
    fn an_order_counts_once_and_never_leads_back() {
        let last = followed(5, "old");
        let known = FileOrderInput { followed: Some(&last), ..input() };
        for serial in [0, 4, 5] {
            let refused = FileOrderRefusal::Older { serial, followed: 5 };
            assert_eq!(may_follow_order(&order(serial), &known), Err(refused));
        }
        assert_eq!(may_follow_order(&order(6), &known), Ok(()));
    }

    #[test]
    fn a_node_that_was_away_follows_and_one_that_was_edited_does_not() {
        let last = followed(2, "missed");
        let away = FileOrderInput { followed: Some(&last), own: ["missed", "m"], ..input() };
        assert_eq!(may_follow_order(&order(4), &away), Ok(()));
        let edited = FileOrderInput { own: ["edited", "e"], ..away.clone() };
        assert_eq!(may_follow_order(&order(4), &edited), Err(FileOrderRefusal::OtherFile));
        let late = FileOrderInput { now_ms: NOW + 24 * HOLDS_MS, ..away.clone() };
        assert_eq!(may_follow_order(&order(4), &late), Err(FileOrderRefusal::Expired));
        let agreed = FileOrderInput { most_act_on_it: true, ..late };
        assert_eq!(may_follow_order(&order(4), &agreed), Ok(()));
    }

    #[test]
    fn time_bounds_an_order_on_both_sides() {
        let early = FileOrderInput { now_ms: NOW - 2 * CLOCKS_MS, ..input() };
        assert_eq!(may_follow_order(&order(1), &early), Err(FileOrderRefusal::Expired));
        let endless = FileOrder { expires_ms: u64::MAX, ..order(1) };
        assert_eq!(may_follow_order(&endless, &input()), Err(FileOrderRefusal::Expired));
    }

    #[test]
    fn an_operator_changes_tunables_and_a_viewer_nothing() {
        let beyond = vec!["backup.store".to_owned()];
        let operator = FileOrderInput { role: OperatorRole::Operator, ..input() };
        assert_eq!(may_follow_order(&order(1), &operator), Ok(()));
        let too_much = FileOrderInput { beyond_tunables: &beyond, ..operator };
        assert!(matches!(may_follow_order(&order(1), &too_much), Err(FileOrderRefusal::Role { .. })));
        let admin = FileOrderInput { beyond_tunables: &beyond, ..input() };
        assert_eq!(may_follow_order(&order(1), &admin), Ok(()));
        let viewer = FileOrderInput { role: OperatorRole::Viewer, ..input() };
        assert!(matches!(may_follow_order(&order(1), &viewer), Err(FileOrderRefusal::Role { .. })));
    }

    #[test]
    fn every_field_changes_the_message_and_none_can_stand_for_another() {
        let base = order(1);
        let mut all = vec![base.message().unwrap()];
        for changed in [
            FileOrder { token: "u".to_owned(), ..base.clone() },
            FileOrder { cluster: None, ..base.clone() },
            FileOrder { replaces: vec!["other".to_owned()], ..base.clone() },
            FileOrder { replaces: vec!["old".to_owned(), "other".to_owned()], ..base.clone() },
            FileOrder { serial: 2, ..base.clone() },
            FileOrder { signed_ms: 2, ..base.clone() },
            FileOrder { expires_ms: 2, ..base.clone() },
            FileOrder { text: "b".to_owned(), ..base.clone() },
        ] {
            all.push(changed.message().unwrap());
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
        for text in ["a\nb", "", "a\r"] {
            assert_eq!(FileOrder { token: text.to_owned(), ..base.clone() }.message(), None);
            assert_eq!(FileOrder { replaces: vec![text.to_owned()], ..base.clone() }.message(), None);
        }
    }
}
