//! A node that was away gets the signed cluster file from the others.
//!
//! **Rule:** who has the file does not matter: the operator's signature is checked as if the operator had sent it.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::change::{Sender, take_async};
use super::messages::{FileRequest, FileTold, NodeAnswer};
use super::server::Api;
use super::{PeerError, file_orders};
use crate::turn::{Wish, in_words};

/// Between two looks at what the others follow.
const EVERY: Duration = Duration::from_secs(5);

/// Takes newer signed files from the other agents until told to stop.
pub(crate) async fn follow_signed_files(api: Api, stop: CancellationToken) {
    if api.node.spec.is_plaintext() || api.node.spec.operators_file_of(api.node.name()).is_none() {
        return;
    }
    loop {
        if take_newer(&api).await {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Returns whether another file was taken: the agent continues with that.
async fn take_newer(api: &Api) -> bool {
    let node = Arc::clone(&api.node);
    // Without its own record it cannot tell which file is newer.
    let Ok(Ok(own)) = tokio::task::spawn_blocking(move || file_orders::followed(&node)).await else { return false };
    let own = own.map_or(0, |followed| followed.signed.order.serial);
    for peer in api.peers.others() {
        let Ok(NodeAnswer { file_serial: Some(serial), file, .. }) = api.peers.node(&peer, None).await else {
            continue;
        };
        if serial <= own || file == api.node.spec.hash() {
            continue;
        }
        let told: Result<FileTold, PeerError> = api.peers.ask(&peer, "/v1/file", None).await;
        let Ok(FileTold { text, order: Some(order), .. }) = told else { continue };
        let request = FileRequest { order: Some(order), ..FileRequest::new(text, api.node.spec.hash()) };
        match take_async(api, request, Sender::Remote).await {
            Ok(taken) if taken.file != api.node.spec.hash() => {
                info!(peer, serial, "took over a signed cluster file that was missed");
                let wish = Wish::reload(&format!("the signed cluster file of `{peer}`"));
                api.wishes.send_modify(|wishes| wishes.push(wish));
                return true;
            }
            Ok(_) => {}
            Err(fault) => {
                debug!(code = %fault.code(), peer, "a signed cluster file is not taken: {}", in_words(&fault))
            }
        }
    }
    false
}
