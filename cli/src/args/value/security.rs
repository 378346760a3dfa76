//! Privileges and profiles.

use std::path::PathBuf;
use std::str::FromStr;

use warren_types::{AppArmor, NoNewPrivileges, Seccomp};

/// A seccomp profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeccompSource {
    /// One that a spec can name.
    Named(Seccomp),
    /// The profile in this file.
    File(PathBuf),
}

impl FromStr for SeccompSource {
    type Err = String;

    /// What a spec has, or a path.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(named) => Ok(Self::Named(named)),
            Err(why) if text.starts_with("config/") => Err(why),
            Err(_) => Ok(Self::File(text.into())),
        }
    }
}

/// A value of Docker's `--security-opt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecurityOption {
    NoNewPrivileges(NoNewPrivileges),
    Seccomp(SeccompSource),
    AppArmor(AppArmor),
}

impl FromStr for SecurityOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').or_else(|| text.split_once(':')).unwrap_or((text, ""));
        match (name, value) {
            ("no-new-privileges", "") => Ok(Self::NoNewPrivileges(NoNewPrivileges::On)),
            ("no-new-privileges", value) => value.parse().map(Self::NoNewPrivileges),
            ("seccomp", "") => {
                Err("seccomp has no profile; give seccomp=FILE or seccomp=unconfined".to_owned())
            }
            ("seccomp", "builtin" | "default") => Ok(Self::Seccomp(SeccompSource::Named(Seccomp::Default))),
            ("seccomp", "unconfined") => Ok(Self::Seccomp(SeccompSource::Named(Seccomp::Unconfined))),
            ("seccomp", file) => Ok(Self::Seccomp(SeccompSource::File(file.into()))),
            ("apparmor", "docker-default") => Ok(Self::AppArmor(AppArmor::Default)),
            ("apparmor", profile) => profile.parse().map(Self::AppArmor),
            _ => Err(format!(
                "{name:?} is not supported; there are no-new-privileges, seccomp=FILE and apparmor=PROFILE"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_names_or_files() {
        let source = |text: &str| text.parse::<SeccompSource>();
        assert_eq!(source("unconfined"), Ok(SeccompSource::Named(Seccomp::Unconfined)));
        let config = Seccomp::Config("strict".parse().unwrap());
        assert_eq!(source("config/strict"), Ok(SeccompSource::Named(config)));
        assert!(source("config/").unwrap_err().contains("is not a name"));
        assert_eq!(source("./strict.json"), Ok(SeccompSource::File("./strict.json".into())));
    }

    #[test]
    fn security_options_are_those_of_docker() {
        let file = |path: &str| SecurityOption::Seccomp(SeccompSource::File(path.into()));
        let named = |seccomp| SecurityOption::Seccomp(SeccompSource::Named(seccomp));
        for (text, expected) in [
            ("no-new-privileges", SecurityOption::NoNewPrivileges(NoNewPrivileges::On)),
            ("no-new-privileges=true", SecurityOption::NoNewPrivileges(NoNewPrivileges::On)),
            ("no-new-privileges:false", SecurityOption::NoNewPrivileges(NoNewPrivileges::Off)),
            ("seccomp=unconfined", named(Seccomp::Unconfined)),
            ("seccomp:unconfined", named(Seccomp::Unconfined)),
            ("seccomp=builtin", named(Seccomp::Default)),
            ("seccomp=./a=b.json", file("./a=b.json")),
            // In Docker's flag it is a path.
            ("seccomp=config/a.json", file("config/a.json")),
            ("apparmor=docker-default", SecurityOption::AppArmor(AppArmor::Default)),
            ("apparmor:unconfined", SecurityOption::AppArmor(AppArmor::Unconfined)),
            ("apparmor=web", SecurityOption::AppArmor(AppArmor::Profile("web".into()))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for wrong in ["", "seccomp", "seccomp=", "apparmor=", "label=disable", "no-new-privileges=yes"] {
            assert!(wrong.parse::<SecurityOption>().is_err(), "{wrong}");
        }
    }
}
