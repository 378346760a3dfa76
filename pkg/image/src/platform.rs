//! Selects the platform of an image that this machine runs best.
//!
//! Source of the names: OCI image specification 1.1, "Image Index", which uses those of Go (`GOOS`,
//! `GOARCH` and, as variant, `GOARM` or `GOAMD64`).

use crate::document::{Descriptor, Platform};

/// The architecture of this machine in OCI terms (`amd64`, `arm64`, ...).
pub fn native_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A machine that runs images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPlatform {
    pub architecture: &'static str,
    /// The highest architecture level of the processor: `v1` to `v4` of amd64, `v8` of arm64.
    pub level: u8,
}

impl HostPlatform {
    /// This machine.
    pub fn native() -> Self {
        let architecture = native_architecture();
        Self { architecture, level: if architecture == "amd64" { amd64_level() } else { 8 } }
    }

    /// Preference for a platform, higher is better; `None` when the host cannot run it.
    pub fn rank(&self, platform: &Platform) -> Option<u8> {
        if platform.os != "linux" || platform.architecture != self.architecture {
            return None;
        }
        let lowest = if self.architecture == "arm64" { 8 } else { 1 };
        let required = match platform.variant.as_deref() {
            None | Some("") => lowest,
            Some(variant) => variant.strip_prefix('v')?.parse().ok()?,
        };
        (lowest..=self.level).contains(&required).then_some(required)
    }

    /// The manifest that this host runs best, the first of equal ones. One without a platform is chosen
    /// only if no other fits: its configuration is checked later.
    ///
    /// # Errors
    /// The existing platforms, comma separated.
    pub fn choose<'a>(&self, among: &'a [Descriptor]) -> Result<&'a Descriptor, String> {
        let rank = |each: &Descriptor| match &each.platform {
            None => Some(0),
            Some(platform) => self.rank(platform),
        };
        let ranked = among.iter().filter_map(|each| Some((rank(each)?, each)));
        // `max_by_key` would return the last of equal ones.
        let best = ranked.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, descriptor)| descriptor).ok_or_else(|| names(among))
    }
}

/// The platforms of descriptors, without attestations added by build tools.
fn names(among: &[Descriptor]) -> String {
    let platforms = among.iter().filter_map(|each| each.platform.as_ref());
    let mut names: Vec<String> =
        platforms.filter(|platform| platform.os != "unknown").map(Platform::to_string).collect();
    names.sort();
    names.dedup();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// The microarchitecture level of the System V ABI for x86-64, from its distinguishing features.
#[cfg(target_arch = "x86_64")]
fn amd64_level() -> u8 {
    use std::arch::is_x86_feature_detected as has;
    let second = has!("sse4.2") && has!("ssse3") && has!("popcnt") && has!("cmpxchg16b");
    let third = second && has!("avx2") && has!("bmi1") && has!("bmi2") && has!("fma") && has!("movbe");
    let fourth = third && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq");
    1 + u8::from(second) + u8::from(third) + u8::from(fourth && has!("avx512vl"))
}

#[cfg(not(target_arch = "x86_64"))]
fn amd64_level() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_registry::{Digest, OCI_MANIFEST};

    fn listed(names: &[&str]) -> Vec<Descriptor> {
        let descriptor = |name: &&str| {
            let mut parts = name.split('/').map(str::to_owned);
            let mut listed = Descriptor::new(OCI_MANIFEST, Digest::of(name.as_bytes()), 1);
            listed.platform = parts.next().filter(|os| !os.is_empty()).map(|os| Platform {
                os,
                architecture: parts.next().unwrap(),
                variant: parts.next(),
            });
            listed
        };
        names.iter().map(descriptor).collect()
    }

    #[test]
    fn best_runnable_platform_is_chosen() {
        let modern = HostPlatform { architecture: "amd64", level: 3 };
        let old = HostPlatform { architecture: "amd64", level: 1 };
        let arm = HostPlatform { architecture: "arm64", level: 8 };
        let all = ["linux/arm64/v8", "linux/amd64", "linux/amd64/v3", "linux/amd64/v4", "windows/amd64"];
        for (host, among, want) in [
            (modern, &all[..], Ok("linux/amd64/v3")),
            (old, &all, Ok("linux/amd64")),
            (arm, &all, Ok("linux/arm64/v8")),
            (arm, &["linux/arm/v7", "linux/arm64"], Ok("linux/arm64")),
            (old, &["", "linux/amd64"], Ok("linux/amd64")),
            (old, &["linux/s390x", ""], Ok("")),
            (old, &["linux/amd64/v2", "unknown/unknown"], Err("linux/amd64/v2")),
            (old, &["linux/amd64/best"], Err("linux/amd64/best")),
            (arm, &["linux/s390x", "linux/amd64"], Err("linux/amd64, linux/s390x")),
            (arm, &[], Err("nothing")),
        ] {
            let among = listed(among);
            let want = want.map(|name| Digest::of(name.as_bytes())).map_err(str::to_owned);
            assert_eq!(host.choose(&among).map(|found| found.digest.clone()), want, "{host:?} {among:?}");
        }
    }

    #[test]
    fn first_of_equal_platforms_is_chosen() {
        let mut among = listed(&["linux/amd64", "linux/amd64"]);
        among[1].size = 2;
        let host = HostPlatform { architecture: "amd64", level: 2 };
        assert_eq!(host.choose(&among).unwrap().size, 1);
    }

    #[test]
    fn native_architecture_is_runnable() {
        let host = HostPlatform::native();
        assert!((1..=8).contains(&host.level), "{host:?}");
        let plain =
            Platform { os: "linux".into(), architecture: native_architecture().into(), variant: None };
        assert!(host.rank(&plain).is_some());
    }
}
