//! A cluster file below another root: the same file for a trial without root rights, and for tests beside each other.
//!
//! **Rule:** the dirs that are ours move, with all that is in them, whether the file names them or leaves them to the
//! defaults. Every other path means what it says.

use super::{ExternalTls, Security, Source, Spec, Tls, TlsFiles};

/// The dirs that move.
const OURS: [&str; 5] =
    ["/etc/quorate", "/var/lib/quorate", "/var/lib/quorate-pg", "/var/lib/etcd", "/var/log/quorate"];

/// Where a path lies below `root`: moved if it is in a dir of ours and not below the root already, else as it is.
pub fn below_root(path: &str, root: &str) -> String {
    let root = root.trim_end_matches('/');
    let is_in = |dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if !is_in(root) && OURS.iter().any(|dir| is_in(dir)) { format!("{root}{path}") } else { path.to_owned() }
}

/// The path as a file declares it for machines with any root: the inverse of [`below_root`] for dirs of ours, else as it is.
pub fn without_root(path: &str, root: &str) -> String {
    let inner = path.strip_prefix(root.trim_end_matches('/')).filter(|inner| below_root(inner, root) == path);
    inner.unwrap_or(path).to_owned()
}

impl Spec {
    /// The same cluster with its dirs below `root`; twice changes nothing more.
    #[must_use]
    pub fn below(self, root: &str) -> Spec {
        Spec { root: Some(root.to_owned()), ..self.moved(&|path| below_root(path, root)) }
    }

    /// The same with every path that may lie in a dir of ours given another place.
    pub(super) fn moved(mut self, place: &dyn Fn(&str) -> String) -> Spec {
        let moved = |path: &mut String| *path = place(path);
        moved(&mut self.agent.state_dir);
        self.agent.etcd_binary.iter_mut().chain(&mut self.agent.etcd_password_file).for_each(moved);
        for member in &mut self.members {
            moved(&mut member.data_dir);
            member.wal_dir.iter_mut().for_each(moved);
        }
        if let Security::Tls(tls) = &mut self.security {
            let Tls { dir, peer, client, agent, admin, operators, peer_allowed_hostname: _, renewed_by_hand: _ } =
                tls.as_mut();
            dir.iter_mut().chain(operators).for_each(moved);
            for files in [peer, client].into_iter().chain(agent).chain(admin) {
                let TlsFiles { cert_file, key_file, trusted_ca_file } = files;
                [cert_file, key_file, trusted_ca_file].into_iter().for_each(moved);
            }
        }
        if let Some(tls) = self.external.as_mut().and_then(|external| external.tls.as_mut()) {
            let ExternalTls { trusted_ca_file, cert_file, key_file } = tls;
            [trusted_ca_file].into_iter().chain(cert_file).chain(key_file).for_each(moved);
        }
        if let Some(source) = &mut self.source {
            let Source { uri: _, size: _, trusted_ca_file, cert_file, key_file, token_file, user_file } = source;
            [trusted_ca_file, cert_file, key_file, token_file, user_file].into_iter().flatten().for_each(moved);
        }
        let users = self.auth.iter_mut().flat_map(|auth| &mut auth.users);
        users.filter_map(|user| user.password_file.as_mut()).for_each(moved);
        for process in &mut self.processes {
            moved(&mut process.executable);
            process.volumes.iter_mut().for_each(|volume| moved(&mut volume.path));
        }
        if let Some(postgres) = &mut self.postgres {
            postgres.nodes.iter_mut().for_each(|node| moved(&mut node.data_dir));
            postgres.users.iter_mut().for_each(|user| moved(&mut user.password_file));
            postgres.store.token_file.iter_mut().for_each(moved);
        }
        if let Some(backup) = &mut self.backup
            && let Some(path) = backup.store.strip_prefix("file://")
        {
            backup.store = format!("file://{}", place(path));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Spec {
        Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
    }

    const MEMBER: &str =
        "token: t\nmembers: [{name: n1, peer-urls: ['https://n1:2380'], client-urls: ['https://n1:2379']}]\n";

    #[test]
    fn files_of_users_and_sources_move_too() {
        let text = "token: t\nplaintext: true\nsource: {uri: 'file:/m', size: 1, token-file: /etc/quorate/t}\nauth: {agent-user: a, \
                    users: [{name: u, password-file: /etc/quorate/u}]}\n";
        let moved = spec(text).below("/r");
        assert_eq!(moved.auth.unwrap().users[0].password_file.as_deref(), Some("/r/etc/quorate/u"));
        assert_eq!(moved.source.unwrap().token_file.as_deref(), Some("/r/etc/quorate/t"));
    }

    #[test]
    fn our_dirs_move_and_others_stay() {
        for (path, moved) in [
            ("/var/lib/quorate", "/r/var/lib/quorate"),
            ("/var/lib/quorate/n1", "/r/var/lib/quorate/n1"),
            ("/etc/quorate/pki/{name}", "/r/etc/quorate/pki/{name}"),
            ("/var/lib/etcd2", "/var/lib/etcd2"),
            ("/srv/etcd", "/srv/etcd"),
            ("", ""),
            ("/r/etc/quorate", "/r/etc/quorate"),
        ] {
            assert_eq!(below_root(path, "/r"), moved);
            assert_eq!(below_root(path, "/r/"), moved);
            assert_eq!(below_root(moved, "/r"), moved);
            let declared = path.strip_prefix("/r").unwrap_or(path);
            assert_eq!(
                (without_root(moved, "/r"), without_root(path, "/r/")),
                (declared.to_owned(), declared.to_owned())
            );
        }
    }

    #[test]
    fn defaults_and_what_is_written_move_alike() {
        let text = format!(
            "{MEMBER}tls: {{dir: /etc/quorate/pki}}\nbackup: {{store: 'file:///var/lib/quorate/store'}}\n\
             agent: {{etcd-binary: /usr/bin/etcd, etcd-user: root, etcd-password-file: /etc/quorate/password}}\n\
             auth: {{users: [{{name: alice, password-file: /etc/quorate/alice, roles: [app]}}], roles: [{{name: app, \
             permissions: [{{prefix: /app/}}]}}]}}\n"
        );
        let moved = spec(&text).below("/r");
        assert_eq!(moved.hash(), spec(&text).hash(), "machines with different roots hold the same file");
        assert_eq!(moved.agent.state_dir, "/r/var/lib/quorate");
        assert_eq!(moved.members[0].data_dir, "/r/var/lib/etcd");
        assert_eq!(moved.agent.etcd_binary.as_deref(), Some("/usr/bin/etcd"));
        assert_eq!(moved.agent.etcd_password_file.as_deref(), Some("/r/etc/quorate/password"));
        assert_eq!(moved.backup.unwrap().store, "file:///r/var/lib/quorate/store");
        let users = moved.auth.unwrap().users;
        assert!(
            users.iter().all(|user| user.password_file.as_ref().unwrap().starts_with("/r/etc/quorate/")),
            "{users:?}"
        );
        let Security::Tls(tls) = moved.security else { panic!("no TLS") };
        assert_eq!(tls.dir.as_deref(), Some("/r/etc/quorate/pki"));
        assert!(tls.peer.key_file.starts_with("/r/etc/quorate/pki/"), "{tls:?}");
    }
}
