//! Decides which records of a peer-managed cluster a node acts on, and which change of its file it takes.
//!
//! ```text
//!   file        signed by servers; pins every other record by its hash; its serial grows with each change
//!   operation   signed by the server that carries it out; its serial is that of the file it leads to
//!   approval    signed by a second server, for one operation and one joining node
//! ```
//!
//! **Invariant:** a record counts only with the signature of a server that the node's own file declares, and never if its serial is below
//! that of a file that the node has held: an old record that is put back is old. A file that is followed differs by members alone, and adds
//! a server to three or more only with the word of two of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::difference::{OtherDifference, only_members_differ};
use super::{Kind, Newcomer, Operation, Signature};
use crate::spec::{Member, Spec};

/// From so many servers on, another one is taken in by the word of two of them.
pub const COUNTERSIGNED_FROM: usize = 3;
/// Nobody is so many changes behind; a serial that is higher by more would leave none for those to come.
const SERIAL_STEP_MAX: u64 = 1_000_000;

/// The file that the last change led to, and every other record by its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// The hash of the file.
    pub hash: String,
    /// Its text.
    pub text: String,
    /// Hashes of the files before it.
    pub earlier: Vec<String>,
    /// Counts changes; 0 in records of releases that signed nothing.
    #[serde(default)]
    pub serial: u64,
    /// The other records that hold, by their keys: what tells each from every other one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, String>,
    /// By servers that hold this very file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
}

/// The right to change peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// The node that carries it out.
    pub by: String,
    /// The node that began it, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The change.
    pub operation: Operation,
    /// The serial of the file that it leads to.
    #[serde(default)]
    pub serial: u64,
    /// By the node that carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
}

/// The word of a second server for a node that is to become a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The id of the operation.
    pub operation: String,
    /// The node, as it is to be declared.
    pub node: Newcomer,
    /// The serial of the operation.
    pub serial: u64,
    /// By the server that approves.
    #[serde(default)]
    pub signatures: Vec<Signature>,
}

/// A record is not acted on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It has no signature.
    #[error("it is not signed")]
    Unsigned,
    /// No signature is one of a declared server.
    #[error("it has no signature of a server that this node's file declares{}", in_words(.0))]
    Stranger(Vec<String>),
    /// It does not fit its own hash, or is of another cluster.
    #[error("its text is not what its hash and its cluster say")]
    Content,
    /// Its serial is below one that this node has held.
    #[error("it is older than what this node has held: serial {0}, and {1} was held")]
    Older(u64, u64),
    /// Its serial leaves none for later changes.
    #[error("its serial {0} is far above {1}, which was held last")]
    Serial(u64, u64),
    /// It changes more than members.
    #[error(transparent)]
    Other(#[from] OtherDifference),
    /// It adds servers, and only one server says so.
    #[error("it adds {} to three or more servers without the word of a second server", .0.join(", "))]
    Uncountersigned(Vec<String>),
}

fn in_words(why: &[String]) -> String {
    if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) }
}

/// The node that reads a record.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    /// Its own cluster file.
    pub own: &'a Spec,
    /// The highest serial of a file that it has held.
    pub serial: u64,
}

/// The nodes that signed a record, and why other signatures do not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signers {
    /// By verified signatures.
    pub names: BTreeSet<String>,
    /// One reason for each signature that does not hold.
    pub unfit: Vec<String>,
}

/// What a file in the store is to the node that reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileState {
    /// The node holds it.
    Held,
    /// The node follows it.
    Follow,
    /// It is valid, and the node holds one that came in another way.
    Other,
    /// It is not valid, and its file is the very one that the node holds: a server signs it again.
    Unproven(Unfit),
    /// It counts for nothing.
    Refused(Unfit),
}

impl FileState {
    /// Whether a declared server vouches for the record.
    pub fn is_valid(&self) -> bool {
        match self {
            FileState::Held | FileState::Follow | FileState::Other => true,
            FileState::Unproven(_) => false,
            FileState::Refused(why) => matches!(why, Unfit::Other(_) | Unfit::Uncountersigned(_)),
        }
    }
}

/// Judges the file in the store. `text`: what its text says; `None`: it cannot be read. `signers`: `None` in clear text, where nothing is
/// signed.
pub fn judge_file(
    record: &FileRecord,
    text: Option<&Spec>,
    signers: Option<&Signers>,
    reader: Reader<'_>,
) -> FileState {
    let own = reader.own.hash();
    let Some(text) = text.filter(|text| text.hash() == record.hash && text.token == reader.own.token) else {
        return FileState::Refused(Unfit::Content);
    };
    let vouchers = match signers {
        None => None,
        Some(signers) => match vouchers(signers, record.signatures.is_empty(), reader.own) {
            Ok(vouchers) => Some(vouchers),
            Err(why) if record.hash == own => return FileState::Unproven(why),
            Err(why) => return FileState::Refused(why),
        },
    };
    if let Err(why) = may_succeed(record.serial, reader.serial) {
        return FileState::Refused(why);
    }
    let known = record.earlier.contains(&own);
    match () {
        () if record.hash == own => FileState::Held,
        // In clear text there may be no serials yet.
        () if !known || vouchers.is_some() && record.serial == reader.serial => FileState::Other,
        () => match judge_change(reader.own, text, |_| vouchers.as_ref().map_or(usize::MAX, BTreeSet::len)) {
            Ok(()) => FileState::Follow,
            Err(why) => FileState::Refused(why),
        },
    }
}

fn may_succeed(serial: u64, held: u64) -> Result<(), Unfit> {
    match () {
        () if serial < held => Err(Unfit::Older(serial, held)),
        () if serial > held.saturating_add(SERIAL_STEP_MAX) => Err(Unfit::Serial(serial, held)),
        () => Ok(()),
    }
}

/// The declared servers among those who signed.
fn vouchers(signers: &Signers, unsigned: bool, own: &Spec) -> Result<BTreeSet<String>, Unfit> {
    let declared = signers.names.iter().filter(|name| own.member(name).is_some()).cloned();
    let declared: BTreeSet<String> = declared.collect();
    let strangers = signers.names.iter().filter(|name| own.member(name).is_none());
    let why = strangers.map(|name| format!("`{}` signed it", name.escape_debug())).chain(signers.unfit.iter().cloned());
    match declared.is_empty() {
        true if unsigned => Err(Unfit::Unsigned),
        true => Err(Unfit::Stranger(why.collect())),
        false => Ok(declared),
    }
}

/// Whether a file may take the place of another by the word of servers. `vouchers`: how many declared servers vouch for a member that is
/// added.
pub fn judge_change(own: &Spec, new: &Spec, vouchers: impl Fn(&Member) -> usize) -> Result<(), Unfit> {
    let difference = only_members_differ(own, new)?;
    let needed = if is_countersigned(own) { 2 } else { 1 };
    let lacking = difference.added.iter().filter(|member| vouchers(member) < needed);
    let lacking: Vec<String> = lacking.map(|member| format!("`{}`", member.name.escape_debug())).collect();
    if lacking.is_empty() { Ok(()) } else { Err(Unfit::Uncountersigned(lacking)) }
}

/// Whether another server is taken in by two servers here.
pub fn is_countersigned(own: &Spec) -> bool {
    own.members.len() >= COUNTERSIGNED_FROM
}

/// Whether a change waits for the word of a second server before it is carried out.
pub fn needs_approval(own: &Spec, kind: &Kind) -> bool {
    let comes = matches!(kind, Kind::Join(_) | Kind::ToServer(_));
    comes && is_countersigned(own) && !own.is_plaintext() && own.member(kind.name()).is_none()
}

/// Judges the claim in the store. `file`: the serial of the file in the store, if that is valid.
pub fn judge_claim(
    claimed: &Claimed,
    signers: Option<&Signers>,
    reader: Reader<'_>,
    file: Option<u64>,
) -> Result<(), Unfit> {
    let Some(signers) = signers else { return Ok(()) };
    let vouchers = vouchers(signers, claimed.signatures.is_empty(), reader.own)?;
    if !vouchers.contains(&claimed.by) {
        return Err(Unfit::Stranger(vec![format!("`{}` carries it out, and another node signed", claimed.by)]));
    }
    let newest = reader.serial.max(file.unwrap_or(0));
    match claimed.serial <= newest {
        true => Err(Unfit::Older(claimed.serial, newest)),
        false => may_succeed(claimed.serial, newest),
    }
}

/// Whether a server goes on with the change of another: its file differs from the own one by the nodes that the change is about, and by
/// nothing else. `text`: the file that it leads to.
pub fn judge_operation(operation: &Operation, text: &Spec, own: &Spec) -> Result<(), Unfit> {
    let difference = only_members_differ(own, text)?;
    let about = |member: &&Member| member.name == operation.kind.name() || operation.also.contains(&member.name);
    let all = difference.added.iter().chain(&difference.removed);
    let others: Vec<String> =
        all.filter(|member| !about(member)).map(|member| format!("members.{}", member.name)).collect();
    let clients = matches!(operation.kind, Kind::Enrol(_) | Kind::Discharge { .. }) && !difference.is_empty();
    match others.is_empty() && !clients {
        true => Ok(()),
        false => Err(Unfit::Other(OtherDifference { keys: others })),
    }
}

/// Judges the word of a second server for a change. `carrier`: the server that carries it out.
pub fn judge_approval(
    approval: &Approval,
    signers: &Signers,
    own: &Spec,
    carrier: &str,
    held: u64,
) -> Result<String, Unfit> {
    let vouchers = vouchers(signers, approval.signatures.is_empty(), own)?;
    if approval.serial <= held {
        return Err(Unfit::Older(approval.serial, held));
    }
    let other = vouchers.into_iter().find(|name| name != carrier && *name != approval.node.name);
    other.ok_or_else(|| Unfit::Stranger(vec![format!("`{}` cannot be its own second server", carrier.escape_debug())]))
}

/// Whether an approval is for this member, as a file declares it.
pub fn approves(approval: &Approval, member: &Member) -> bool {
    let Newcomer { name, address, data_dir: _ } = &approval.node;
    let host = if address.contains(':') { format!("//[{address}]:") } else { format!("//{address}:") };
    let same = |urls: &[String]| urls.iter().all(|url| url.contains(&host));
    *name == member.name && same(&member.peer_urls) && same(&member.client_urls) && !member.peer_urls.is_empty()
}

#[cfg(test)]
mod tests;
