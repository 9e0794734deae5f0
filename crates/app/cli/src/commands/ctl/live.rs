//! The endpoints of the members that a cluster has now.
//!
//! **Rule:** one URL for each member, ours first; a cluster that does not answer is asked where its file says it is.

use quorate_agent::turn::Node;
use quorate_etcd::client::{Client, Consistency, Settings};
use quorate_faults::Fault;

use crate::commands::run::runtime;
use crate::printer::Printer;

/// Asks any member that answers.
pub(super) fn endpoints(node: &Node, settings: &Settings, printer: &mut Printer) -> Result<Vec<String>, Fault> {
    let own = node.member.client_urls.iter().take(1);
    let others = node.spec.members.iter().filter(|member| member.name != node.name());
    let declared: Vec<String> =
        own.chain(others.flat_map(|member| member.client_urls.iter().take(1))).cloned().collect();
    let settings = Settings { endpoints: declared.clone(), ..settings.clone() };
    let asked = runtime()?.block_on(async {
        let client = Client::connect(&settings).await?;
        // Any member's own view: it must also be had where there is no quorum.
        client.member_list(Consistency::Local).await
    });
    let members = match asked {
        Ok(listed) => listed.members,
        Err(fault) => {
            printer.note(&format!("no member says who the others are ({fault}); asking those of the cluster file"));
            return Ok(declared);
        }
    };
    let mut urls: Vec<String> =
        members.into_iter().filter_map(|member| member.client_urls.into_iter().next()).collect();
    urls.sort_by_key(|url| !node.member.client_urls.contains(url));
    Ok(if urls.is_empty() { declared } else { urls })
}
