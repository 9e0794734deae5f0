//! Asks a process how it is.
//!
//! **Rule:** no answer in time is a bad one, and says so.

use std::time::Duration;

use quorate_plan::spec::Check;
use reqwest::redirect::Policy;

/// A good answer, or what is wrong with it.
pub(super) type Answer = Result<(), String>;

/// Asks over the network.
pub(super) async fn ask(check: &Check, timeout: Duration) -> Answer {
    let late = |_| format!("no answer within {timeout:?}");
    match check {
        Check::Tcp(place) => {
            let connected = tokio::time::timeout(timeout, tokio::net::TcpStream::connect(place)).await;
            connected.map_err(late)?.map(drop).map_err(|error| format!("`{place}`: {error}"))
        }
        Check::Http(url) => tokio::time::timeout(timeout, get(url)).await.map_err(late)?,
        // A command is run by whoever has the box.
        Check::Exec(_) => Ok(()),
    }
}

async fn get(url: &str) -> Answer {
    let client = reqwest::Client::builder().no_proxy().redirect(Policy::none()).build();
    let client = client.map_err(|error| error.to_string())?;
    let answer = client.get(url).send().await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("`{url}` does not answer{cause}")
    })?;
    let code = answer.status().as_u16();
    if (200..400).contains(&code) { Ok(()) } else { Err(format!("`{url}` answers {code}")) }
}
