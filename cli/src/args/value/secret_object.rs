//! Parsers for mounts of secrets and configs, and for registries.

use warren_types::{SecretObjectMount, SecretObjectName};

use super::split::{permissions, set_once, split_colons_and_options, split_commas};

/// The mount of a secret; a relative target of the long form is below this directory, as in Docker.
pub fn secret_mount(text: &str) -> Result<SecretObjectMount, String> {
    parse_mount(text, "/run/secrets/")
}

/// The mount of a config.
pub fn config_mount(text: &str) -> Result<SecretObjectMount, String> {
    parse_mount(text, "/")
}

/// `NAME[:TARGET][,uid=N][,gid=N][,mode=OCTAL][,template]`, or Docker's `source=NAME[,target=TARGET]...`.
fn parse_mount(text: &str, directory: &str) -> Result<SecretObjectMount, String> {
    let (head, options) = match ["source=", "src=", "target="].iter().any(|key| text.starts_with(key)) {
        true => long_form(text, directory)?,
        false => split_colons_and_options(text),
    };
    let (name, target) = match head.as_slice() {
        [name] => (name, None),
        [name, target] => (name, Some(target.clone())),
        _ => return Err("has too many colons; escape a colon in a name or path as \\:".to_owned()),
    };
    let mut mount = SecretObjectMount::new(name.parse().map_err(|why| format!("{why}"))?);
    mount.target = target;
    let mut template = None;
    for option in &options {
        match option.split_once('=') {
            Some(("uid", id)) => set_once(option, &mut mount.uid, number(id)?)?,
            Some(("gid", id)) => set_once(option, &mut mount.gid, number(id)?)?,
            Some(("mode", bits)) => set_once(option, &mut mount.mode, permissions(bits)?)?,
            None if option == "template" => set_once(option, &mut template, true)?,
            _ => {
                let known = "uid=N, gid=N, mode=OCTAL and template";
                return Err(format!("{option:?} is not known; there are {known}"));
            }
        }
    }
    mount.template = template.is_some();
    Ok(mount)
}

/// The name and the target of the long form, and its other options.
fn long_form(text: &str, directory: &str) -> Result<(Vec<String>, Vec<String>), String> {
    let (mut source, mut target, mut options) = (None, None, Vec::new());
    for option in split_commas(text) {
        match option.split_once('=') {
            Some(("source" | "src", name)) => set_once(&option, &mut source, name.to_owned())?,
            Some(("target", path)) if path.starts_with('/') => {
                set_once(&option, &mut target, path.to_owned())?;
            }
            Some(("target", path)) => set_once(&option, &mut target, format!("{directory}{path}"))?,
            _ => options.push(option),
        }
    }
    let source = source.ok_or("source is missing; give source=NAME")?;
    Ok((std::iter::once(source).chain(target).collect(), options))
}

fn number(text: &str) -> Result<u32, String> {
    // The greatest number is no valid id.
    let number = text.parse().ok().filter(|number| !text.starts_with('+') && *number != u32::MAX);
    number
        .ok_or_else(|| format!("{text:?} is not a number from 0 to 4294967294; names are not supported here"))
}

/// The host and port of a registry, as in image references.
pub fn registry(text: &str) -> Result<SecretObjectName, String> {
    if text.contains('/') {
        return Err("give only HOST[:PORT], like ghcr.io or registry.example:5000".to_owned());
    }
    // An old name of the same registry.
    let host = if text == "index.docker.io" { "docker.io" } else { text };
    let name: SecretObjectName =
        host.parse().map_err(|why| format!("{why}; give HOST[:PORT], like registry.example:5000"))?;
    // Without a dot or port it would be the first part of a path, as in `library/nginx`.
    match host.contains(['.', ':']) || host == "localhost" {
        true => Ok(name),
        false => {
            Err(format!("{text:?} cannot be the registry of an image: give its full name, or HOST:PORT"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_object_mounts_parse() {
        let plain = |name: &str| SecretObjectMount::new(name.parse().unwrap());
        let at = |name: &str, target: &str| SecretObjectMount { target: Some(target.into()), ..plain(name) };
        let secret_object_mount = secret_mount;
        assert_eq!(secret_object_mount("db"), Ok(plain("db")));
        assert_eq!(secret_object_mount("source=db"), Ok(plain("db")));
        assert_eq!(secret_object_mount("source=db,target=pw"), Ok(at("db", "/run/secrets/pw")));
        assert_eq!(config_mount("src=db,target=pw"), Ok(at("db", "/pw")));
        assert_eq!(config_mount("source=db,target=/etc/db,uid=1"), {
            Ok(SecretObjectMount { uid: Some(1), ..at("db", "/etc/db") })
        });
        assert_eq!(secret_object_mount("target=a").unwrap_err(), "source is missing; give source=NAME");
        assert_eq!(secret_object_mount("db:/etc/db"), Ok(at("db", "/etc/db")));
        assert_eq!(secret_object_mount(r"a\:5000:/a\,b\:c"), Ok(at("a:5000", "/a,b:c")));
        assert_eq!(secret_object_mount("db,uid=0,gid=33,mode=0440"), {
            Ok(SecretObjectMount { uid: Some(0), gid: Some(33), mode: Some(0o440), ..plain("db") })
        });
        assert_eq!(
            secret_object_mount("db:/x,template"),
            Ok(SecretObjectMount { template: true, ..at("db", "/x") })
        );
        for (bad, why) in [
            ("", "\"\" is not a name"),
            ("a b", "\"a b\" is not a name"),
            ("db:/a:ro", "too many colons"),
            ("db,uid=root", "\"root\" is not a number from 0 to 4294967294; names are not supported here"),
            ("db,gid=-1", "\"-1\" is not a number"),
            ("db,mode=8", "\"8\" is not a mode"),
            ("db,uid=1,uid=1", "option \"uid=1\" is given twice"),
            ("db,ro", "\"ro\" is not known; there are uid=N, gid=N, mode=OCTAL and template"),
            ("db,", "\"\" is not known"),
        ] {
            let found = secret_object_mount(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn registry_hosts_parse() {
        for (text, expected) in [
            ("ghcr.io", "ghcr.io"),
            ("localhost", "localhost"),
            ("reg:5000", "reg:5000"),
            ("index.docker.io", "docker.io"),
        ] {
            assert_eq!(registry(text).map(|name| name.to_string()).as_deref(), Ok(expected));
        }
        for (bad, why) in [
            ("https://ghcr.io", "give only HOST[:PORT]"),
            ("ghcr.io/org", "give only HOST[:PORT]"),
            ("", "\"\" is not a name"),
            ("[::1]:5000", "give HOST[:PORT], like registry.example:5000"),
            ("ghcr", "\"ghcr\" cannot be the registry of an image"),
        ] {
            let found = registry(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }
}
