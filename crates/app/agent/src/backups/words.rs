//! Numbers as people read them in a log.

/// `12.3 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A cluster's id as etcd's own tools print it in JSON-free form.
pub fn cluster_hex(id: u64) -> String {
    format!("{id:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!((size(0), size(1023), size(1536)), ("0 B".to_owned(), "1023 B".to_owned(), "1.5 KiB".to_owned()));
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }
}
