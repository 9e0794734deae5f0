//! Fills in the members of a cluster file whose addresses a source has.
//!
//! **Rule:** a list is used when it is complete, or not at all. A source that is silent does not stop a node that knows the list
//! from before; it never makes one up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::root::root;
use quorate_plan::Warning;
use quorate_plan::roster::{Roster, parse_list};
use quorate_plan::spec::Spec;

use crate::cluster_file;
use crate::sources::{self, SourceOptions};

/// The last complete list, in the state dir of a member.
const MEMORY: &str = "members.json";

/// How long commands and agents ask for a list that is not complete yet; an agent is then started again.
pub const ASKED_WITHIN: Duration = Duration::from_secs(30);

/// How often an agent asks again while nothing is founded yet.
pub const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// A list that we wrote ourselves is no longer.
const MEMORY_BYTES_MAX: u64 = 1 << 20;

/// The same with all members, and what is to be said. Asks nobody where the file has the addresses itself.
///
/// `name`: the local member, under whose state the list is remembered. `wait`: how long an incomplete list is asked for again.
pub async fn resolve(spec: Spec, name: Option<&str>, wait: Duration) -> Result<(Spec, Vec<Warning>), Fault> {
    if spec.source.is_none() || spec.is_resolved() {
        return Ok((spec, Vec::new()));
    }
    let memory = name.map(|name| PathBuf::from(spec.state_dir_of(name)).join(MEMORY));
    let remembered = memory.as_deref().and_then(recall);
    // Whoever knows the list from before asks once.
    let wait = if remembered.is_some() { Duration::ZERO } else { wait };
    let fault = match ask(&spec, name, wait).await.and_then(|roster| Ok((spec.with_roster(&roster)?, roster))) {
        Ok((full, roster)) => {
            if let Some(memory) = &memory {
                remember(memory, &roster)?;
            }
            return Ok((rooted(full)?, Vec::new()));
        }
        Err(fault) => fault,
    };
    match remembered {
        Some(roster) if fault.code() != Code::SourceInvalid => {
            let text = format!("{fault}; the list from before is used");
            Ok((rooted(spec.with_roster(&roster)?)?, vec![Warning { code: fault.code(), text }]))
        }
        Some(_) | None => Err(fault),
    }
}

/// The same for whoever runs no runtime of its own; in a thread, so that it may be called from anywhere.
pub fn resolve_now(spec: Spec, name: Option<&str>, wait: Duration) -> Result<(Spec, Vec<Warning>), Fault> {
    if spec.source.is_none() || spec.is_resolved() {
        return Ok((spec, Vec::new()));
    }
    on_own_thread(move |runtime| runtime.block_on(resolve(spec, name, wait)))
}

fn on_own_thread<T: Send>(work: impl FnOnce(&tokio::runtime::Runtime) -> Result<T, Fault> + Send) -> Result<T, Fault> {
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        work(&runtime.map_err(|error| Fault::io("cannot start the runtime", error))?)
    };
    std::thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(Fault::new(Code::Internal, "asking the source of members ended in a panic")))
}

/// The same for a file that another machine sent: only the source that this node's own file names is queried, and nothing is written.
/// `state`: the state dir of this node.
pub fn resolve_received(received: &Spec, own: &Spec, name: &str, state: &Path) -> Result<Spec, Fault> {
    let Some(source) = &received.source else { return Ok(received.clone()) };
    if received.is_resolved() {
        return Ok(received.clone());
    }
    if !own.source.as_ref().is_some_and(|own| own.is_same_place(source)) {
        return Err(Fault::new(
            Code::ReceivedSource,
            "the received file names another source of members than this node's own",
        )
        .hint("change `source` in the file of each node itself; see `quorate explain Q1460`"));
    }
    let (spec, name) = (received.clone(), name.to_owned());
    match on_own_thread(move |runtime| runtime.block_on(ask(&spec, Some(&name), Duration::ZERO))) {
        Ok(roster) => rooted(received.with_roster(&roster)?),
        Err(fault) if fault.code() == Code::SourceInvalid => Err(fault),
        Err(fault) => match recall(&state.join(MEMORY)) {
            Some(roster) => rooted(received.with_roster(&roster)?),
            None => Err(fault),
        },
    }
}

/// Members that have remembered a list on this machine.
pub fn kept_here(spec: &Spec) -> Vec<String> {
    let some = PathBuf::from(spec.state_dir_of("any"));
    let Some(entries) = some.parent().and_then(|above| std::fs::read_dir(above).ok()) else { return Vec::new() };
    let kept = entries.flatten().filter(|entry| entry.path().join(MEMORY).is_file());
    kept.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Asks the source of a file again and again while `waits` says so, and returns when it names other members than `full` has.
/// A source that does not answer, or not in full, has said nothing.
pub async fn changed(file: &Path, full: &Spec, name: &str, every: Duration, waits: impl Fn() -> bool) {
    loop {
        tokio::time::sleep(every).await;
        if !waits() {
            continue;
        }
        match ask_again(file, name).await {
            // Whoever has begun meanwhile goes on with what it began with.
            Ok(now) if now.members != full.members && waits() => return,
            Ok(_) => {}
            Err(fault) => tracing::debug!(code = %fault.code(), "asked the source of members again: {fault}"),
        }
    }
}

/// On a thread of its own: sources are asked one after the other, and not everywhere at once.
async fn ask_again(file: &Path, name: &str) -> Result<Spec, Fault> {
    let (file, name) = (file.to_owned(), name.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let (written, _) = cluster_file::read(&file)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Fault::io("cannot start the runtime", error))?;
        let roster = runtime.block_on(ask(&written, Some(&name), Duration::ZERO))?;
        rooted(written.with_roster(&roster)?)
    });
    let halted = |_| Fault::new(Code::Internal, "asking the source of members came to a halt");
    asked.await.unwrap_or_else(|error| Err(halted(error)))
}

/// Members that the file does not list have the dirs of the defaults, which move with the root.
fn rooted(spec: Spec) -> Result<Spec, Fault> {
    Ok(match root()? {
        Some(root) => spec.below(&root),
        None => spec,
    })
}

async fn ask(spec: &Spec, name: Option<&str>, wait: Duration) -> Result<Roster, Fault> {
    let Some(declared) = &spec.source else {
        return Err(Fault::new(Code::Internal, "a cluster file without a source was asked for its source"));
    };
    let path = |file: &Option<String>| file.as_ref().map(PathBuf::from);
    let options = SourceOptions {
        cacert: path(&declared.trusted_ca_file),
        cert: path(&declared.cert_file),
        key: path(&declared.key_file),
        token_file: path(&declared.token_file),
        user_file: path(&declared.user_file),
        local_name: name.map(ToOwned::to_owned),
        ..SourceOptions::default()
    };
    let source = sources::open(&declared.uri, &options)?;
    sources::gather(source.as_ref(), Some(declared.size), wait, &mut |text| tracing::info!("{text}")).await
}

fn remember(memory: &Path, roster: &Roster) -> Result<(), Fault> {
    let bytes = serde_json::to_vec_pretty(&roster.members).unwrap_or_default();
    let known = std::fs::read(memory).is_ok_and(|known| known == bytes);
    // Without a state dir nothing has been started here yet, and nothing is remembered.
    if known || !memory.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    ensure_file(&RealDisk, memory, &bytes)
}

/// A list that cannot be read is none: it is only ever written whole.
fn recall(memory: &Path) -> Option<Roster> {
    let length = std::fs::metadata(memory).ok()?.len();
    let bytes = (length <= MEMORY_BYTES_MAX).then(|| std::fs::read(memory).ok())??;
    parse_list(&bytes, &memory.display().to_string()).ok()
}
