//! Stands in for etcd-wrapper: asks the sidecar to see to the data, fetches etcd's configuration, and runs etcd.
//!
//! **Invariant:** the exit-code file says `terminated` or `interrupt` only after an etcd that had served was asked to end
//! and did. It is gone before etcd is started again, so whatever cuts this program short leads to a full validation.

mod child;
mod exit_code;
mod handshake;
mod listener;
mod ready;
mod settings;
mod sidecar;

use std::path::Path;
use std::sync::Arc;

use quorate_etcd::binary::{Binary, Places};
use quorate_faults::{Code, Fault, Result};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use exit_code::Mode;
pub use settings::{HELP, Settings};

use super::etcd_yaml::EtcdYaml;
use super::{Asked, Signals, small_file};
use child::{Child, End};
use ready::Readiness;
use sidecar::Sidecar;

/// How it ended, when nothing was wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Somebody asked, or etcd ended by itself: exit code 0, and Kubernetes starts it again.
    Done,
    /// A second signal came before etcd had ended.
    Forced,
}

/// Does it all. Call it on the thread that lives as long as the program: etcd dies with that thread.
pub async fn run(settings: &Settings, mut signals: Signals) -> Result<Ended> {
    let sidecar = Sidecar::new(&settings.sidecar)?;
    let prepared = tokio::select! {
        prepared = prepare(settings, &sidecar) => prepared?,
        asked = signals.next() => {
            info!("ended by `{}` before etcd was started", asked.word());
            return Ok(Ended::Done);
        }
    };
    let (config, program) = prepared;
    let (stop, readiness) = (CancellationToken::new(), Arc::new(Readiness::default()));
    let asked_to_stop = CancellationToken::new();
    let router = listener::router(Arc::clone(&readiness), asked_to_stop.clone());
    let bound = listener::bind(settings.port, &config).await?;
    exit_code::consume(&settings.exit_code_file)?;
    let child = Child::start(&program.path, &settings.config_file)?;
    info!(pid = child.pid(), version = program.version, "started etcd");
    let serving = tokio::spawn(bound.serve(router, stop.clone()));
    let probing = tokio::spawn(ready::watch(settings.probe(&config), Arc::clone(&readiness), stop.clone()));
    let ended = attend(child, &mut signals, &asked_to_stop, &readiness, &settings.exit_code_file).await;
    readiness.set(false);
    stop.cancel();
    probing.abort();
    serving.abort();
    ended
}

/// Everything before etcd: the handshake, the configuration, and the modes of files.
async fn prepare(settings: &Settings, sidecar: &Sidecar) -> Result<(EtcdYaml, Binary)> {
    handshake::initialize(sidecar, settings).await;
    let text = handshake::fetch_config(sidecar).await?;
    let config = EtcdYaml::parse(&text, "the sidecar")?;
    small_file::write(&settings.config_file, text.as_bytes())?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    if let Some(data_dir) = config.data_dir() {
        close_files(&data_dir)?;
    }
    let path = std::env::var_os("PATH");
    let near = std::env::current_dir().into_iter().collect();
    let places = Places { named: settings.etcd.as_deref(), path: path.as_deref(), near };
    Ok((config, Binary::find(&places)?))
}

/// Stays with etcd until it has ended, and writes down how.
async fn attend(
    mut child: Child,
    signals: &mut Signals,
    asked_to_stop: &CancellationToken,
    readiness: &Readiness,
    exit_code_file: &Path,
) -> Result<Ended> {
    let asked = tokio::select! {
        end = child.wait() => {
            let end = end?;
            warn!("etcd ended by itself: {end}");
            return Ok(Ended::Done);
        }
        asked = signals.next() => asked,
        () = asked_to_stop.cancelled() => Asked::Terminate,
    };
    readiness.set(false);
    info!("stopping etcd: `{}`", asked.word());
    child.terminate();
    let end = tokio::select! {
        end = child.wait() => end?,
        _ = signals.next() => {
            warn!("a second signal: not waiting for etcd");
            child.kill().await;
            return Ok(Ended::Forced);
        }
    };
    match end {
        // Before it serves, etcd catches no signal, and its end then says nothing about its files.
        End::Followed if readiness.has_been() => exit_code::record(exit_code_file, asked)?,
        End::Followed => info!("etcd had not served yet, so that the next start validates all of its data"),
        End::Otherwise(_) => warn!("etcd was asked to end and did otherwise: {end}; the next start validates its data"),
    }
    Ok(Ended::Done)
}

/// Takes everybody but the owner off the files of the data dir.
fn close_files(data_dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let fail = |path: &Path, error| Fault::io(format!("cannot set the mode of `{}`", path.display()), error);
    match std::fs::metadata(data_dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(data_dir, error)),
        Ok(meta) if !meta.is_dir() => {
            let what = format!("cannot use `{}` as a data dir: it is no directory", data_dir.display());
            return Err(Fault::new(Code::GardenerConfig, what).hint("see `data-dir` in etcd's configuration"));
        }
        Ok(_) => {}
    }
    let mut dirs = vec![data_dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries = std::fs::read_dir(&dir).map_err(|error| fail(&dir, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| fail(&dir, error))?;
            let kind = entry.file_type().map_err(|error| fail(&entry.path(), error))?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                let mode = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(entry.path(), mode).map_err(|error| fail(&entry.path(), error))?;
            }
        }
    }
    Ok(())
}
