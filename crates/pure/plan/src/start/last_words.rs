//! What etcd's last lines say about another start: that it cannot help, or what stands in its way for now.
//!
//! **Rule:** only etcd's own messages and errors count, and only those that it ends with. Names and keys of users, which lines
//! also hold, never decide anything.

use quorate_faults::Code;

use crate::server_log::{self, Level};

/// What a message begins with or holds, and what it means.
type Sign = (&'static str, Code, &'static str);

/// Another start would end the same way.
const PERMANENT: &[Sign] = &[
    (
        "the member has been permanently removed from the cluster",
        Code::StartRemoved,
        "etcd says that this member was removed",
    ),
    // 3.4 in JSON and everything later; then 3.4 in text.
    (
        "invalid downgrade; server version is lower than determined cluster version",
        Code::EtcdOlder,
        "this etcd is older than its data",
    ),
    ("cluster cannot be downgraded", Code::EtcdOlder, "this etcd is older than its data"),
    (" has already been bootstrapped", Code::EtcdRefusedCluster, "the cluster knows this member as started"),
    ("failed to verify flags", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("error verifying flags", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("flag provided but not defined", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("error parsing CompactionRetention", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("unexpected TLS cipher suite", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("auth: invalid auth options", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("auth: missing key data", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("panic: unrecognized level", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
    ("panic: unknown level", Code::EtcdRefusedSettings, "etcd does not accept its settings"),
];

/// A later start may well succeed.
const PASSING: &[Sign] = &[
    ("bind: address already in use", Code::ListenFailed, "another process listens on etcd's port"),
    ("bind: cannot assign requested address", Code::ListenFailed, "etcd's address does not belong to this machine"),
    ("bind: permission denied", Code::ListenFailed, "etcd may not listen on its port"),
    ("no space left on device", Code::DiskFull, "the disk is full"),
    ("disk quota exceeded", Code::DiskFull, "the disk quota is used up"),
    ("permission denied", Code::NoPermission, "etcd may not read or write its files"),
    // 3.4 in text does not say why.
    ("error listing data dir", Code::NoPermission, "etcd cannot read its data dir"),
    ("read-only file system", Code::NoPermission, "etcd's file system is read-only"),
    // The check at the start; the peers may be the ones to be mended.
    ("found data inconsistency with peers", Code::CorruptAtStart, "etcd holds other data than its peers"),
    ("error validating peerURLs", Code::EtcdRefusedCluster, "the cluster has other members than etcd was told"),
];

/// Reads from etcd's last log lines whether another start can help; if it cannot, says why.
pub fn classify(log_tail: &str) -> Option<(Code, &'static str)> {
    find(log_tail, PERMANENT)
}

/// Whether another program or other files may mend what etcd refused for ever: then it is tried again once those have changed.
pub fn is_mended_by_files(code: Code) -> bool {
    matches!(code, Code::EtcdOlder | Code::EtcdRefusedSettings)
}

/// Reads from etcd's last log lines what stood in its way, where that may pass.
pub fn hindrance(log_tail: &str) -> Option<(Code, &'static str)> {
    find(log_tail, PASSING)
}

/// Reads from etcd's last log lines that its log is shorter than the leader knows it to be: how far it was known, and where it ends.
pub fn out_of_range(log_tail: &str) -> Option<(u64, u64)> {
    let said = log_tail.lines().rev().filter_map(server_log::parse).filter(|line| line.level >= Level::Error);
    let number = |text: &str| text.split_once(')').and_then(|(number, _)| number.parse().ok());
    let read = |line: server_log::Line| {
        let (_, known) = line.text.split_once("tocommit(")?;
        let (_, last) = known.split_once("is out of range [lastIndex(")?;
        Some((number(known)?, number(last)?))
    };
    said.filter_map(read).next()
}

/// The last word counts.
fn find(log_tail: &str, signs: &[Sign]) -> Option<(Code, &'static str)> {
    let said = log_tail.lines().rev().filter_map(server_log::parse).filter(|line| line.level >= Level::Warn);
    let meaning = |line: server_log::Line| signs.iter().find(|(sign, ..)| line.text.contains(sign));
    said.filter_map(meaning).next().map(|(_, code, why)| (*code, *why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_wrote_decides_nothing() {
        let key = r#"{"level":"warn","msg":"apply request took too long","request":"key:\"failed to verify flags\"","error":"x"}"#;
        let peer = r#"{"level":"warn","msg":"request cluster ID mismatch","error":"cluster ID mismatch"}"#;
        let info = r#"{"level":"info","msg":"failed to verify flags"}"#;
        for line in [key, peer, info, "failed to verify flags"] {
            assert_eq!((classify(line), hindrance(line)), (None, None), "{line}");
        }
    }

    #[test]
    fn a_log_that_is_shorter_than_the_leader_knows_is_read() {
        let panic = r#"{"level":"panic","ts":"2026","logger":"raft","caller":"etcdserver/zap_raft.go:101","msg":"tocommit(57) is out of range [lastIndex(31)]. Was the raft log corrupted, truncated, or lost?"}"#;
        assert_eq!(out_of_range(panic), Some((57, 31)));
        let key = r#"{"level":"warn","msg":"apply request took too long","request":"tocommit(57) is out of range [lastIndex(31)]"}"#;
        for line in [key, "", r#"{"level":"panic","msg":"tocommit(x) is out of range [lastIndex(31)]"}"#] {
            assert_eq!(out_of_range(line), None);
        }
    }

    #[test]
    fn the_last_word_counts() {
        let log = concat!(
            r#"{"level":"warn","msg":"x","error":"listen tcp: bind: address already in use"}"#,
            "\n",
            r#"{"level":"panic","msg":"failed to create WAL","error":"no space left on device"}"#,
            "\npanic: failed to create WAL\n\tstack\n",
        );
        assert_eq!(hindrance(log).unwrap().0, Code::DiskFull);
    }
}
