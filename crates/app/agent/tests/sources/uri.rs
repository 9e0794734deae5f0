//! Every URI that cannot be understood, with the exact words of its refusal.

use std::path::PathBuf;

use quorate_agent::sources::{SourceOptions, open};

use super::{ask, refusal, shown, words};

#[test]
fn uris_that_cannot_be_understood_are_refused_with_a_way_out() {
    for (uri, expected) in [
        (
            "zookeeper:x",
            "Q0101 cannot understand source `zookeeper:x` -> a source begins with one of `static:`, `file:`, `dns-srv:`, \
             `http:`, `https:`, `exec:`, `exec+shell:`, `consul:`, `etcd:`",
        ),
        (
            "",
            "Q0101 cannot understand source `` -> a source begins with one of `static:`, `file:`, `dns-srv:`, `http:`, `https:`, `exec:`, `exec+shell:`, `consul:`, `etcd:`",
        ),
        ("consull:x", "Q0101 cannot understand source `consull:x` -> did you mean `consul:`?"),
        ("dns_srv:x", "Q0101 cannot understand source `dns_srv:x` -> did you mean `dns-srv:`?"),
        ("n1=http://a:1", "Q0101 cannot understand source `n1=http://a:1` -> did you mean `static:n1=http://a:1`?"),
        ("/etc/m.yaml", "Q0101 cannot understand source `/etc/m.yaml` -> did you mean `file:/etc/m.yaml`?"),
        ("-", "Q0101 cannot understand source `-` -> did you mean `file:-`?"),
        (
            "file:",
            "Q0101 cannot understand source `file:`: it names no file -> write `file:PATH`, or `file:-` for standard input",
        ),
        ("exec:", "Q0101 cannot understand source `exec:`: it names no program -> write `exec:PROGRAM ARGUMENT…`"),
        (
            "exec:list 'a",
            "Q0101 cannot understand source `exec:list 'a`: a `'` is not closed -> \
             close it, or say `exec+shell:` to have a shell read the command",
        ),
        (
            "exec+shell: ",
            "Q0101 cannot understand source `exec+shell: `: it has no command -> write `exec+shell:COMMAND`",
        ),
        ("dns-srv:", "Q0101 cannot understand source `dns-srv:`: it names no domain -> write `dns-srv:example.com`"),
        (
            "dns-srv:a b",
            "Q0101 cannot understand source `dns-srv:a b`: it names no domain -> write `dns-srv:example.com`",
        ),
        (
            "dns-srv:a?sll=true",
            "Q0101 cannot understand source `dns-srv:a?sll=true`: it has no option `sll` -> did you mean `ssl`?",
        ),
        (
            "dns-srv:a?colour=red",
            "Q0101 cannot understand source `dns-srv:a?colour=red`: it has no option `colour` -> \
             its options are `ssl`, `server`, `service-name`, `advertise`",
        ),
        (
            "dns-srv:a?ssl",
            "Q0101 cannot understand source `dns-srv:a?ssl`: option `ssl` has no value -> write `ssl=VALUE`",
        ),
        (
            "dns-srv:a?ssl=yes",
            "Q0101 cannot understand source `dns-srv:a?ssl=yes`: option `ssl` is `yes`, not `true` or `false` -> \
             write `ssl=true` or `ssl=false`",
        ),
        (
            "dns-srv:a?ssl=true&ssl=true",
            "Q0101 cannot understand source `dns-srv:a?ssl=true&ssl=true`: option `ssl` is given twice -> give it once",
        ),
        (
            "dns-srv:a?server=dns.local",
            "Q0101 cannot understand source `dns-srv:a?server=dns.local`: option `server` is `dns.local`, not an address -> \
             write `server=10.0.0.53` or `server=10.0.0.53:5353`",
        ),
        (
            "dns-srv:a?service-name=b.c",
            "Q0101 cannot understand source `dns-srv:a?service-name=b.c`: option `service-name` is `b.c`, which no record can \
             have -> use letters, digits, `-` and `_`",
        ),
        (
            "dns-srv:a?advertise=http://b:1",
            "Q0101 cannot understand source `dns-srv:a?advertise=http://b:1`: option `advertise`: it needs a name to give -> \
             say this node's name with `--name`",
        ),
        (
            "dns-srv:a?advertise=http://b",
            "Q0101 cannot understand source `dns-srv:a?advertise=http://b`: option `advertise`: it has no port -> \
             write `http://b:2380`",
        ),
        (
            "https://root:secret@host/list",
            "Q0101 cannot understand source `https://…@host/list`: it contains a user name or password, which every user of \
             this host could read -> put the secret into a file: `--source-token-file`",
        ),
        ("https://", "Q0101 cannot understand source `https://`: empty host -> write `https://HOST/PATH`"),
        (
            "consul:http://127.0.0.1:8500",
            "Q0101 cannot understand source `consul:http://127.0.0.1:8500`: it names no service -> \
             write `consul:http://127.0.0.1:8500/SERVICE`",
        ),
        (
            "consul:ftp://h/etcd",
            "Q0101 cannot understand source `consul:ftp://h/etcd`: Consul speaks `http` and `https` -> \
             write `consul:http://127.0.0.1:8500/SERVICE`",
        ),
        (
            "consul:h:8500/etcd?scheme=tcp",
            "Q0101 cannot understand source `consul:h:8500/etcd?scheme=tcp`: option `scheme` is not `http` or `https` -> \
             write `scheme=https`",
        ),
        (
            "etcd:http://a:2379",
            "Q0101 cannot understand source `etcd:http://a:2379`: it names no prefix -> \
             write `etcd:https://10.0.0.1:2379,https://10.0.0.2:2379/PREFIX`",
        ),
        (
            "etcd:http://u:secret@a:2379/x",
            "Q0101 cannot understand source `etcd:http://…@a:2379/x`: it contains a user name or password, which every user of \
             this host could read -> write `etcd:https://10.0.0.1:2379,https://10.0.0.2:2379/PREFIX`",
        ),
    ] {
        let got = open(uri, &SourceOptions::default()).err().map(|fault| words(&fault)).unwrap_or("opened".to_owned());
        assert_eq!(got, expected, "{uri}");
    }
}

#[test]
fn credentials_that_would_not_be_used_are_refused() {
    let options = SourceOptions { token_file: Some(PathBuf::from("/nowhere")), ..SourceOptions::default() };
    for scheme in ["static", "file", "dns-srv", "exec", "exec+shell"] {
        assert_eq!(
            refusal(ask(&format!("{scheme}:x"), &options)),
            format!(
                "Q0003 `--source-token-file` means nothing to a `{scheme}:` source -> \
                 it is for `http:`, `https:`, `consul:` and `etcd:`; leave it out here"
            )
        );
    }
}

#[test]
fn static_lists_are_read_as_etcd_reads_them() {
    let roster = ask("static:n1=http://b:1,n2=http://c:1,n1=http://a:1", &SourceOptions::default()).unwrap();
    assert_eq!(shown(&roster), "n1=http://a:1,http://b:1 n2=http://c:1");
    assert_eq!(roster.provenance, "static:");
}
