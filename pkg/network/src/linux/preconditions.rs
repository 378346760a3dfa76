//! Checks the requirements of this machine before anything is changed.

use nix::unistd::geteuid;

use super::process::run;
use super::{isolation, sysctl};
use crate::Error;
use crate::desired::Sysctl;

/// First version with `iptables-restore -w` and `MASQUERADE --random-fully`.
const MIN_IPTABLES: (u32, u32, u32) = (1, 6, 2);
const MIN_IPTABLES_TEXT: &str = "1.6.2";

pub(super) async fn check() -> Result<(), Error> {
    let uid = geteuid();
    if !uid.is_root() {
        return Err(Error::NotRoot { uid: uid.as_raw() });
    }
    let found = run("iptables", &["--version"], "").await?;
    if parse_version(&found).is_none_or(|version| version < MIN_IPTABLES) {
        return Err(Error::ProgramTooOld { found: found.trim().to_owned(), needed: MIN_IPTABLES_TEXT });
    }
    run("iptables-restore", &["--version"], "").await?;
    run("iptables-save", &["--version"], "").await?;
    // Listing a table shows whether the kernel supports this iptables variant.
    for table in ["raw", "mangle", "filter", "nat"] {
        run("iptables", &["-w", "-t", table, "-S"], "").await?;
    }
    isolation::check().await?;
    sysctl::check(&Sysctl { path: "net/ipv4/ip_forward".to_owned(), value: "1" })
}

/// Reads `iptables v1.8.9 (nf_tables)`.
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let number = text.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut parts = number.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next().and_then(Result::ok).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        for (text, version) in [
            ("iptables v1.8.9 (nf_tables)\n", Some((1, 8, 9))),
            ("iptables v1.4.21", Some((1, 4, 21))),
            ("iptables v2.0", Some((2, 0, 0))),
            ("iptables", None),
            ("busybox vX.1.2", None),
        ] {
            assert_eq!(parse_version(text), version, "{text}");
        }
        assert!(parse_version("iptables v1.4.21").unwrap() < MIN_IPTABLES);
        assert!(parse_version("iptables v1.10.0").unwrap() > MIN_IPTABLES);
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let missing = run("iptables-of-nowhere", &[], "").await.unwrap_err();
        assert!(missing.to_string().contains("iptables-of-nowhere"), "{missing}");
        assert!(missing.to_string().contains("apt-get install iptables"), "{missing}");
    }

    #[tokio::test]
    async fn failed_program_shows_its_stderr() {
        let failed = run("iptables", &["-t", "nonsense", "-S"], "").await.unwrap_err();
        assert!(failed.to_string().contains("iptables -t nonsense -S"), "{failed}");
        assert!(failed.to_string().contains("does not exist"), "{failed}");
    }
}
