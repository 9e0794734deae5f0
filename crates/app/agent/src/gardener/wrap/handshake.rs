//! The loop before etcd is started, and the fetching of its configuration.

use std::time::Duration;

use quorate_faults::Result;
use tracing::{info, warn};

use super::exit_code;
use super::settings::Settings;
use super::sidecar::{Sidecar, Status};
use crate::gardener::in_words;

/// Between two rounds of the loop, and two attempts to fetch the configuration.
const PAUSE: Duration = Duration::from_secs(1);

/// Attempts to fetch the configuration.
const CONFIG_ATTEMPTS: u32 = 5;

/// Asks until the sidecar has seen to the data, however long that takes.
pub(super) async fn initialize(sidecar: &Sidecar, settings: &Settings) {
    let mut said = String::new();
    let mut say = |text: String, grave: bool| {
        // The same once a second helps nobody.
        if said != text {
            if grave {
                warn!("{text}")
            } else {
                info!("{text}")
            }
            said = text;
        }
    };
    loop {
        match sidecar.status().await {
            Ok(Status::Successful) => {
                info!("the sidecar has seen to the data");
                return;
            }
            Ok(Status::InProgress) => say("the sidecar is at work".to_owned(), false),
            Ok(Status::New) => {
                let mode = exit_code::mode(&settings.exit_code_file);
                exit_code::forget_marker(&settings.exit_code_file);
                match sidecar.start(mode).await {
                    Ok(()) => info!(mode = mode.word(), "asked the sidecar to see to the data"),
                    Err(fault) => say(in_words(&fault), true),
                }
            }
            Err(fault) => say(in_words(&fault), true),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Fetches the configuration.
pub(super) async fn fetch_config(sidecar: &Sidecar) -> Result<String> {
    let mut attempt = 1;
    loop {
        match sidecar.config().await {
            Ok(text) => return Ok(text),
            Err(fault) if attempt == CONFIG_ATTEMPTS => return Err(fault),
            Err(fault) => warn!(attempt, "{}", in_words(&fault)),
        }
        attempt += 1;
        tokio::time::sleep(PAUSE).await;
    }
}
