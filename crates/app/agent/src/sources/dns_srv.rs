//! `dns-srv:DOMAIN`: the SRV records that etcd's own `--discovery-srv` reads.
//!
//! Without `ssl=…` both `_etcd-server-ssl._tcp` (https) and `_etcd-server._tcp` (http) are asked and combined, as etcd does.
//!
//! **Invariant:** every node computes the same list. So names come from the records (etcd would number them in the order of
//! the answer, which differs between nodes), and a target without an address is a fault (etcd would leave it out).

mod lookup;
mod naming;

use std::net::{IpAddr, SocketAddr};

use quorate_faults::{Code, Fault, Result};
use quorate_plan::roster::{Answer, RawMember, Roster, check_url, quoted};

use self::lookup::{Found, Lookups, Target};
use super::uri::Parts;
use super::{Asked, Source, SourceOptions, silent};

/// SRV records below a domain.
pub(super) struct DnsSrv {
    domain: String,
    services: Vec<Service>,
    server: Option<SocketAddr>,
    advertise: Option<Advertise>,
    provenance: String,
}

/// One set of records and what its URLs begin with.
#[derive(Debug, Clone)]
struct Service {
    query: String,
    scheme: &'static str,
}

/// How etcd finds itself: its `--name` belongs to the target that is at its advertised address.
struct Advertise {
    name: String,
    scheme: String,
    host: String,
    port: u16,
}

/// A record with the scheme of the set that it was in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    scheme: &'static str,
    target: Target,
}

impl Record {
    fn url(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.target.host, self.target.port)
    }
}

impl DnsSrv {
    pub(super) fn open(rest: &str, options: &SourceOptions) -> Result<DnsSrv> {
        let parts = Parts::parse("dns-srv", rest, &["ssl", "server", "service-name", "advertise"])?;
        let domain = parts.place.trim_end_matches('.');
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if domain.is_empty() || !domain.chars().all(allowed) || domain.split('.').any(str::is_empty) {
            return Err(parts.invalid("it names no domain").hint("write `dns-srv:example.com`"));
        }
        let suffix = match parts.get("service-name") {
            None | Some("") => String::new(),
            Some(name) if name.chars().all(|c| allowed(c) && c != '.') => format!("-{name}"),
            Some(name) => {
                let why = format!("option `service-name` is {}, which no record can have", quoted(name));
                return Err(parts.invalid(why).hint("use letters, digits, `-` and `_`"));
            }
        };
        let tls = Service { query: format!("_etcd-server-ssl{suffix}._tcp.{domain}."), scheme: "https" };
        let plain = Service { query: format!("_etcd-server{suffix}._tcp.{domain}."), scheme: "http" };
        let services = match parts.flag("ssl")? {
            Some(true) => vec![tls],
            Some(false) => vec![plain],
            None => vec![tls, plain],
        };
        let server = parts.get("server").map(|text| parse_server(&parts, text)).transpose()?;
        let advertise = parts.get("advertise").map(|text| parse_advertise(&parts, text, options)).transpose()?;
        Ok(DnsSrv { domain: domain.to_owned(), services, server, advertise, provenance: format!("dns-srv:{domain}") })
    }

    async fn answer(&self) -> Result<Answer> {
        let lookups = Lookups::new(self.server)
            .map_err(|error| silent(&self.provenance, "the resolver cannot be set up").caused_by(error))?;
        let records = self.records(&lookups).await?;
        let addresses = lookups.addresses(records.iter().map(|record| record.target.host.clone())).await;
        let mut located = Vec::with_capacity(records.len());
        for (record, addresses) in records.into_iter().zip(addresses) {
            match addresses {
                Found::Some(addresses) => located.push((record, addresses)),
                Found::None => return Err(self.no_address(&record.target.host)),
                Found::Refused(error) | Found::Silent(error) => {
                    let why = format!("the address of {} cannot be looked up", quoted(&record.target.host));
                    return Err(silent(&self.provenance, why).hint("see that the DNS server is up").caused_by(error));
                }
            }
        }
        self.roster(&lookups, located).await
    }

    /// The records of all sets. No record anywhere is an empty list; no answer is a fault.
    async fn records(&self, lookups: &Lookups) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let mut refused = None;
        let found = lookups.srvs(self.services.iter().map(|service| service.query.clone())).await;
        for (service, found) in self.services.iter().zip(found) {
            match found {
                Found::Some(targets) => {
                    records.extend(targets.into_iter().map(|target| Record { scheme: service.scheme, target }));
                }
                Found::None => {}
                // A server that serves the one set and not the other may refuse to speak of the other.
                Found::Refused(error) => refused = Some((service, error)),
                Found::Silent(error) => return Err(self.no_answer(&service.query, error)),
            }
        }
        if let (true, Some((service, error))) = (records.is_empty(), refused) {
            return Err(self.no_answer(&service.query, error));
        }
        let both = records.iter().find(|record| {
            records.iter().any(|other| other.scheme != record.scheme && other.target.host == record.target.host)
        });
        match both {
            Some(record) => Err(self.in_both(&record.target.host)),
            None => Ok(records),
        }
    }

    async fn roster(&self, lookups: &Lookups, located: Vec<(Record, Vec<IpAddr>)>) -> Result<Answer> {
        let mut names = naming::names(located.iter().map(|(record, _)| &record.target));
        if let Some(advertise) = &self.advertise
            && !located.is_empty()
        {
            let local = self.find_local(lookups, advertise, &located).await?;
            if let Some(name) = names.get_mut(local) {
                name.clone_from(&advertise.name);
            }
        }
        let members = located.iter().zip(names).map(|((record, _), name)| RawMember::new(name, vec![record.url()]));
        Ok(Roster::build(&self.provenance, members.collect())?.into())
    }

    async fn find_local(
        &self,
        lookups: &Lookups,
        advertise: &Advertise,
        located: &[(Record, Vec<IpAddr>)],
    ) -> Result<usize> {
        let url = format!("{}://{}:{}", advertise.scheme, advertise.host, advertise.port);
        let own = match lookups.address(&advertise.host).await {
            Found::Some(own) => own,
            Found::None => return Err(self.no_address(&advertise.host)),
            Found::Refused(error) | Found::Silent(error) => {
                let why = format!("the address of {} cannot be looked up", quoted(&advertise.host));
                return Err(silent(&self.provenance, why).hint("see that the DNS server is up").caused_by(error));
            }
        };
        let here = |(record, addresses): &(Record, Vec<IpAddr>)| {
            record.target.port == advertise.port && addresses.iter().any(|address| own.contains(address))
        };
        let found =
            located.iter().position(here).and_then(|index| located.get(index).map(|(record, _)| (index, record)));
        match found {
            Some((index, record)) if record.scheme == advertise.scheme => Ok(index),
            Some((_, record)) => {
                let (ours, theirs) = (quoted(&url), quoted(&record.url()));
                let attempt =
                    format!("option `advertise` is {ours}, but the records of `{}` say {theirs}", self.domain);
                Err(Fault::new(Code::SourceNotAList, attempt).hint("correct the scheme of either"))
            }
            None => {
                let attempt = format!("no record of {} is at {}", quoted(&self.provenance), quoted(&url));
                Err(Fault::new(Code::RosterSelfMissing, attempt).hint("add this node's record, or correct `advertise`"))
            }
        }
    }

    fn no_answer(&self, query: &str, error: hickory_resolver::net::NetError) -> Fault {
        let query = query.trim_end_matches('.');
        let hint = match self.services.len() {
            1 => "see that the DNS server is up, or name another with `server=ADDRESS`".to_owned(),
            _ => "see that the DNS server is up; if only one kind of record exists, say `ssl=true` or `ssl=false`"
                .to_owned(),
        };
        silent(&self.provenance, format!("no answer about `{query}`")).hint(hint).caused_by(error)
    }

    fn no_address(&self, host: &str) -> Fault {
        let fault = silent(&self.provenance, format!("its target {} has no address", quoted(host)));
        fault.hint("add its address record, or remove its SRV record; leaving it out would found another cluster")
    }

    fn in_both(&self, host: &str) -> Fault {
        let sets = self.services.iter().map(|service| format!("`{}`", service.query.trim_end_matches('.')));
        let sets = sets.collect::<Vec<_>>().join(" and ");
        let attempt = format!("{} is a target of both {sets}", quoted(host));
        Fault::new(Code::SourceNotAList, attempt).hint("say which one counts: `ssl=true` or `ssl=false`")
    }
}

impl Source for DnsSrv {
    fn provenance(&self) -> &str {
        &self.provenance
    }

    fn ask(&self) -> Asked<'_> {
        Box::pin(self.answer())
    }
}

/// `10.0.0.53`, `10.0.0.53:5353`, `::1` or `[::1]:5353`.
fn parse_server(parts: &Parts<'_>, text: &str) -> Result<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
    text.parse().or(bare).map_err(|_| {
        let why = format!("option `server` is {}, not an address", quoted(text));
        parts.invalid(why).hint("write `server=10.0.0.53` or `server=10.0.0.53:5353`")
    })
}

fn parse_advertise(parts: &Parts<'_>, text: &str, options: &SourceOptions) -> Result<Advertise> {
    let bad = |why: String, hint: &str| Err(parts.invalid(format!("option `advertise`: {why}")).hint(hint));
    let url = match check_url(text) {
        Ok(url) => url.text,
        Err(error) => return bad(error.why, &error.way_out),
    };
    let network = url.split_once("://").filter(|(scheme, _)| scheme.starts_with("http"));
    let Some((scheme, (host, port))) = network.and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once(':')?))) else {
        return bad("it is not a network address".to_owned(), "use `http` or `https`");
    };
    let Some(name) = options.local_name.clone() else {
        return bad("it needs a name to give".to_owned(), "say this node's name with `--name`");
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Advertise { name, scheme: scheme.to_owned(), host, port: port.parse().unwrap_or_default() })
}
