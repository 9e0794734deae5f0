//! Names for members that are known by their addresses only.

use std::collections::BTreeSet;

use super::lookup::Target;

/// The first label of each host if that tells them apart, else the host, else host and port. Same records, same names.
pub(super) fn names<'a>(targets: impl Iterator<Item = &'a Target>) -> Vec<String> {
    let targets: Vec<&Target> = targets.collect();
    let label = |target: &Target| target.host.split('.').next().unwrap_or_default().to_owned();
    let host = |target: &Target| target.host.clone();
    let host_and_port = |target: &Target| format!("{}-{}", target.host, target.port);
    let labels = targets.iter().map(|target| label(target)).collect::<Vec<_>>();
    let hosts = targets.iter().map(|target| host(target)).collect::<Vec<_>>();
    match (differ(&labels), differ(&hosts)) {
        (true, _) => labels,
        (false, true) => hosts,
        (false, false) => targets.iter().map(|target| host_and_port(target)).collect(),
    }
}

fn differ(names: &[String]) -> bool {
    let distinct: BTreeSet<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    distinct.len() == names.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(targets: &[(&str, u16)]) -> String {
        let targets: Vec<Target> =
            targets.iter().map(|(host, port)| Target { priority: 0, host: (*host).to_owned(), port: *port }).collect();
        names(targets.iter()).join(" ")
    }

    #[test]
    fn names_are_as_short_as_they_can_be() {
        assert_eq!(
            named(&[("etcd-0.etcd.default.svc.cluster.local", 1), ("etcd-1.etcd.default.svc.cluster.local", 1)]),
            "etcd-0 etcd-1"
        );
        assert_eq!(named(&[("etcd.a.example", 1), ("etcd.b.example", 1)]), "etcd.a.example etcd.b.example");
        assert_eq!(named(&[("localhost", 1), ("localhost", 2)]), "localhost-1 localhost-2");
        assert_eq!(named(&[("N1.example", 1), ("n1.example.org", 1)]), "N1.example n1.example.org");
        assert_eq!(named(&[]), "");
    }
}
