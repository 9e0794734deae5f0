//! Which cluster files a node takes from another machine: those that an operator signed, and changes of peers.
//!
//! **Invariant:** the certificate of a node alone replaces no file. The order that was followed last is on disk once its file is in place;
//! a run that was killed in between follows it again.

use std::io::Read;
use std::path::Path;

use jiff::Timestamp;
use quorate_etcd::aside::ensure_file;
use quorate_etcd::ledger::observe_ledger;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_pki::verify_order;
use quorate_plan::file_order::{FileOrderInput, FileOrderRefusal, FollowedOrder, SignedFileOrder, may_follow_order};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::spec::{Spec, changes_beyond_tunables};
use sha2::{Digest, Sha256};
use tracing::info;

use super::change::Sender;
use crate::cluster_file;
use crate::turn::{Node, now_ms};

/// The last order that was followed, in the state dir.
const FILE: &str = "file-order.json";
/// An order holds a certificate and some hashes.
const BYTES_MAX: u64 = 64 << 10;
/// The settings that a change of peers may differ in.
const OF_PEERS: [&str; 2] = ["members", "bootstrap.id"];

/// The last signed file that this node followed. A record that cannot be read is not the same as none: an older signed file could be sent
/// once more. Reads a file: not for async code.
pub(super) fn followed(node: &Node) -> Result<Option<FollowedOrder>, Fault> {
    let path = node.state_path().join(FILE);
    let unusable = |why: String| {
        Fault::new(Code::FileSignature, format!("cannot read the last signed order in `{}`", path.display()))
            .hint("bring the file back from a copy; a file that is changed on the node itself needs no order")
            .caused_by(why)
    };
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error.to_string())),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(|error| unusable(error.to_string()))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| unusable(error.to_string()))
}

/// Records an order whose file is in place.
pub(super) fn ensure_followed(node: &Node, signed: &SignedFileOrder, file: &str) -> Result<(), Fault> {
    let next = FollowedOrder { signed: signed.clone(), file: file.to_owned() };
    if followed(node)?.as_ref() == Some(&next) {
        return Ok(());
    }
    let bytes = serde_json::to_vec_pretty(&next)
        .map_err(|error| Fault::new(Code::Internal, "cannot write the order of a cluster file").caused_by(error))?;
    ensure_file(&RealDisk, &node.state_path().join(FILE), &bytes)
}

/// What came with a file.
pub(super) struct Sent<'a> {
    pub(super) text: &'a str,
    pub(super) order: Option<&'a SignedFileOrder>,
    pub(super) sender: Sender,
    /// Whether more than half of the members of this node's file act on it.
    pub(super) most_act_on_it: bool,
}

/// Decides whether a file may take the place of this node's. `new`: as it is written. Reads files: not for async code.
pub(super) fn check(node: &Node, sent: &Sent<'_>, new: &Spec) -> Result<(), Fault> {
    let beyond_peers = || {
        let mut changes = changes_beyond_tunables(&as_written(node), new);
        changes.retain(|path| !OF_PEERS.contains(&path.as_str()));
        changes
    };
    match (sent.sender, sent.order) {
        (Sender::Owner, _) => Ok(()),
        (_, Some(signed)) => check_signed(node, sent, signed, new),
        (Sender::Server, None) if beyond_peers().is_empty() => Ok(()),
        (Sender::Server, None) => Err(unsigned(&format!(
            "a change of peers changes members alone, and this one changes {}",
            beyond_peers().join(", ")
        ))),
        (Sender::Remote, None) => Err(unsigned("it is not signed by an operator")),
    }
}

/// The file of the node before a source filled its members in: what is sent is compared as it is written, too.
fn as_written(node: &Node) -> Spec {
    cluster_file::parse(node.text.as_bytes(), "the file of this node")
        .map_or_else(|_| node.spec.clone(), |(spec, _)| spec)
}

fn unsigned(why: &str) -> Fault {
    Fault::new(Code::FileUnsigned, format!("the cluster file that was sent is not taken: {why}")).hint(
        "run the command with the certificate of an operator (`quorate ca issue --role admin`), or change the file on each node itself",
    )
}

fn check_signed(node: &Node, sent: &Sent<'_>, signed: &SignedFileOrder, new: &Spec) -> Result<(), Fault> {
    let refused = |why: &str| {
        Fault::new(
            Code::FileSignature,
            format!("the signature of the cluster file that was sent does not count: {why}"),
        )
        .hint("see `quorate explain Q1502`")
    };
    let Some(authority) = node.spec.operators_file_of(node.name()) else {
        return Err(refused("the file of this node names no operators' authority (`tls.operators`)"));
    };
    let identity = verify_order(signed, &node.spec.token, Path::new(&authority), Timestamp::now());
    let identity = identity.map_err(|why| refused(&why))?;
    let cluster = match observe_ledger(&node.ledger()) {
        LedgerSeen::There(ledger) => ledger.cluster(),
        LedgerSeen::Absent => None,
        LedgerSeen::Unreadable(_) => return Err(refused("the ledger of this node cannot be read")),
    };
    let (own, beyond) = (node.spec.hash(), changes_beyond_tunables(&as_written(node), new));
    let (text, followed) = (text_hash(sent.text), followed(node)?);
    let input = FileOrderInput {
        token: &node.spec.token,
        cluster,
        own: [&node.written, &own],
        text: &text,
        followed: followed.as_ref(),
        role: identity.role,
        beyond_tunables: &beyond,
        now_ms: now_ms(),
        most_act_on_it: sent.most_act_on_it,
    };
    may_follow_order(&signed.order, &input).map_err(|why| {
        let code = match &why {
            FileOrderRefusal::OtherFile => Code::FileStale,
            FileOrderRefusal::OtherCluster => Code::PeerOtherCluster,
            FileOrderRefusal::Role { .. } => Code::OperatorNeeded,
            FileOrderRefusal::OtherText | FileOrderRefusal::Older { .. } | FileOrderRefusal::Expired => {
                Code::FileSignature
            }
        };
        let attempt = format!("the cluster file that was sent is not taken: {why}");
        Fault::new(code, attempt).hint(format!("see `quorate explain {code}`"))
    })?;
    let (operator, role, serial) = (&identity.name, identity.role.word(), signed.order.serial);
    info!(operator, role, serial, certificate = identity.serial, "the signature of a cluster file counts");
    Ok(())
}

/// What an order says of a text.
pub fn text_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
