//! DNS questions, with "there is none" and "no answer" kept apart.
//!
//! **Invariant:** names are asked as they are, never with a search list: search lists differ between nodes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{RData, RecordType};
use hickory_resolver::{Resolver, TokioResolver};
use tokio::task::JoinSet;

/// Time for one try; with the second one, both sets of records fit into the time limit of an answer.
const TRY_FOR: Duration = Duration::from_secs(2);

/// What a question came to.
#[derive(Debug)]
pub(super) enum Found<T> {
    /// These.
    Some(T),
    /// There is none, says a server that knows.
    None,
    /// A server will not say.
    Refused(NetError),
    /// Nobody answered, or with a failure.
    Silent(NetError),
}

/// Where an SRV record points to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) priority: u16,
    pub(super) host: String,
    pub(super) port: u16,
}

/// A resolver without memory: an answer of a second ago may be the one we are waiting to change.
#[derive(Clone)]
pub(super) struct Lookups {
    resolver: TokioResolver,
}

impl Lookups {
    /// Asks the given server, or those that this host is set up to ask.
    pub(super) fn new(server: Option<SocketAddr>) -> Result<Lookups, NetError> {
        let mut builder = match server {
            Some(server) => Resolver::builder_with_config(only(server), TokioRuntimeProvider::default()),
            None => TokioResolver::builder_tokio()?,
        };
        let options: &mut ResolverOpts = builder.options_mut();
        options.timeout = TRY_FOR;
        options.attempts = 1;
        options.cache_size = 0;
        options.try_tcp_on_error = true;
        Ok(Lookups { resolver: builder.build()? })
    }

    /// The SRV records of many names, asked at once, in the order of the names.
    pub(super) async fn srvs(&self, names: impl Iterator<Item = String>) -> Vec<Found<Vec<Target>>> {
        all(names.map(|name| {
            let lookups = self.clone();
            async move { lookups.srv(&name).await }
        }))
        .await
    }

    /// The addresses of many hosts, asked at once, in the order of the hosts.
    pub(super) async fn addresses(&self, hosts: impl Iterator<Item = String>) -> Vec<Found<Vec<IpAddr>>> {
        all(hosts.map(|host| {
            let lookups = self.clone();
            async move { lookups.address(&host).await }
        }))
        .await
    }

    /// The SRV records of a name, in an order that every node finds them in.
    async fn srv(&self, name: &str) -> Found<Vec<Target>> {
        let found = classify(self.resolver.lookup(name, RecordType::SRV).await);
        let Found::Some(lookup) = found else { return found.nothing() };
        let mut targets: Vec<Target> = lookup
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                // The target `.` says that the service is decidedly not offered.
                RData::SRV(srv) if !srv.target.is_root() => Some(Target {
                    priority: srv.priority,
                    host: srv.target.to_ascii().trim_end_matches('.').to_owned(),
                    port: srv.port,
                }),
                _ => None,
            })
            .collect();
        targets.sort();
        match targets.is_empty() {
            true => Found::None,
            false => Found::Some(targets),
        }
    }

    /// The addresses of one host, which may be an address itself.
    pub(super) async fn address(&self, host: &str) -> Found<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Found::Some(vec![address]);
        }
        let found = classify(self.resolver.lookup_ip(format!("{}.", host.trim_end_matches('.'))).await);
        let Found::Some(lookup) = found else { return found.nothing() };
        let addresses: Vec<IpAddr> = lookup.iter().collect();
        match addresses.is_empty() {
            true => Found::None,
            false => Found::Some(addresses),
        }
    }
}

/// Runs questions at once; answers come in their order.
async fn all<T: Send + 'static>(questions: impl Iterator<Item = impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let mut tasks = JoinSet::new();
    for (index, question) in questions.enumerate() {
        tasks.spawn(async move { (index, question.await) });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

impl<T> Found<T> {
    /// The same finding about something else, which is none either.
    fn nothing<U>(self) -> Found<U> {
        match self {
            Found::Some(_) | Found::None => Found::None,
            Found::Refused(error) => Found::Refused(error),
            Found::Silent(error) => Found::Silent(error),
        }
    }
}

fn classify<T>(result: Result<T, NetError>) -> Found<T> {
    let error = match result {
        Ok(found) => return Found::Some(found),
        Err(error) => error,
    };
    let code = match &error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => Some(none.response_code),
        NetError::Dns(DnsError::ResponseCode(code)) => Some(*code),
        _ => None,
    };
    match code {
        Some(ResponseCode::NoError | ResponseCode::NXDomain) => Found::None,
        Some(ResponseCode::Refused) => Found::Refused(error),
        _ => Found::Silent(error),
    }
}

fn only(server: SocketAddr) -> ResolverConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = server.port();
        connection
    });
    let server = NameServerConfig::new(server.ip(), true, connections.to_vec());
    ResolverConfig::from_parts(None, Vec::new(), vec![server])
}
