//! Servers vouch for the file of the cluster's record: each one signs it that holds it, and writes it again where it was lost.
//!
//! ```text
//!   held, without this server's signature ──► signed        unsigned, and the same file ──► signed, with the next serial
//!   absent, old or forged, and every server holds the file that this one held last ──► written again, with the next serial
//! ```
//!
//! **Invariant:** a server signs only the file that it holds itself. What is not acted on is reported, in the status, in the log and as a
//! metric.

use quorate_faults::{Code, Fault};
use quorate_plan::peering::{FileState, Role, Unfit};

use super::client::records;
use super::keep::hear;
use super::listing::{FoundFile, Look};
use super::store::HeldFile;
use crate::peers::Api;
use crate::turn::Notice;

/// What is reported here.
const CODES: [Code; 3] = [Code::RecordRefused, Code::FileOtherChange, Code::Uncountersigned];

/// Remembers the file that this node holds, and reports what is not acted on.
pub(super) fn note(api: &Api, look: &Look) -> Result<(), Fault> {
    let notices = look.doubts.iter().map(|(code, text)| {
        let mut notice = Notice::new(*code, text.clone());
        notice.way_out = Some(format!("see `quorate explain {code}`"));
        notice
    });
    api.shared.warnings(&CODES, notices.collect());
    let Some(FoundFile { record: Some(record), state: FileState::Held, .. }) = &look.file else { return Ok(()) };
    let held = HeldFile {
        cluster: api.node.spec.token.clone(),
        serial: record.serial,
        hash: record.hash.clone(),
        earlier: record.earlier.clone(),
        pins: record.pins.clone(),
    };
    if api.peering.kept().held.as_ref() == Some(&held) {
        return Ok(());
    }
    api.peering.change(|kept| kept.held = Some(held))
}

/// Signs the file in the store, or writes it again, where this node is a server that serves.
pub(super) async fn ensure_vouched(api: &Api, look: &Look) -> Result<(), Fault> {
    let server = matches!(api.peering.role(), Some(Role::Standalone | Role::Server | Role::External));
    if !server || !api.node.is_declared() || !api.shared.readiness().1 {
        return Ok(());
    }
    let records = records(api).await?;
    let held = api.peering.held(&api.node.spec.token);
    let rewrite = match look.file.as_ref().map(|file| &file.state) {
        Some(FileState::Held) => return records.ensure_signed(look).await.map(|_| ()),
        Some(FileState::Unproven(_)) => true,
        None if held.serial == 0 => true,
        None => is_held_by_all(api, &held).await,
        Some(FileState::Refused(Unfit::Other(_) | Unfit::Uncountersigned(_))) => false,
        Some(FileState::Refused(_)) => is_held_by_all(api, &held).await,
        Some(FileState::Follow | FileState::Other) => false,
    };
    if rewrite { records.ensure_file(look, &api.node.text).await } else { Ok(()) }
}

/// Whether every declared server answers, and all hold the file that this one held last.
async fn is_held_by_all(api: &Api, held: &HeldFile) -> bool {
    let own = api.node.spec.hash();
    if held.serial == 0 || held.hash != own {
        return false;
    }
    let heard = hear(api).await;
    let others = api.node.spec.members.iter().filter(|member| member.name != api.node.name());
    let holds = |name: &str| heard.get(name).is_some_and(|answer| answer.as_ref().is_ok_and(|it| it.file == own));
    others.map(|member| member.name.as_str()).all(holds)
}
