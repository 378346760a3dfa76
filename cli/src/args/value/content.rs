//! Secrets and configs of a task, as people write them.

use warren_types::{ContentMount, ContentName};

use super::parts::{escaped_fields, once, permissions};

/// `NAME[:TARGET][,uid=N][,gid=N][,mode=OCTAL][,template]`.
pub fn content(text: &str) -> Result<ContentMount, String> {
    let (head, options) = escaped_fields(text);
    let (name, target) = match head.as_slice() {
        [name] => (name, None),
        [name, target] => (name, Some(target.clone())),
        _ => return Err("has too many colons; write \\: for one that belongs to a name or path".to_owned()),
    };
    let mut mount = ContentMount::new(name.parse().map_err(|why| format!("{why}"))?);
    mount.target = target;
    let mut template = None;
    for option in &options {
        match option.split_once('=') {
            Some(("uid", id)) => once(option, &mut mount.uid, number(id)?)?,
            Some(("gid", id)) => once(option, &mut mount.gid, number(id)?)?,
            Some(("mode", bits)) => once(option, &mut mount.mode, permissions(bits)?)?,
            None if option == "template" => once(option, &mut template, true)?,
            _ => {
                let known = "uid=N, gid=N, mode=OCTAL and template";
                return Err(format!("{option:?} is not known; there are {known}"));
            }
        }
    }
    mount.template = template.is_some();
    Ok(mount)
}

fn number(text: &str) -> Result<u32, String> {
    // The greatest number belongs to nobody.
    let number = text.parse().ok().filter(|number| !text.starts_with('+') && *number != u32::MAX);
    number.ok_or_else(|| format!("{text:?} is not a number of 0 to 4294967294; names are not looked up here"))
}

/// The host and port of a registry, as references of images have it.
pub fn registry(text: &str) -> Result<ContentName, String> {
    if text.contains('/') {
        return Err("give only HOST[:PORT], like ghcr.io or registry.example:5000".to_owned());
    }
    // The old name of the same registry.
    let host = if text == "index.docker.io" { "docker.io" } else { text };
    let name: ContentName =
        host.parse().map_err(|why| format!("{why}; give HOST[:PORT], like registry.example:5000"))?;
    // Without a dot or port it would be the first part of a path, as in `library/nginx`.
    match host.contains(['.', ':']) || host == "localhost" {
        true => Ok(name),
        false => Err(format!("no image names the registry {text:?}: give its full name, or HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_a_name_a_target_and_options() {
        let plain = |name: &str| ContentMount::new(name.parse().unwrap());
        let at = |name: &str, target: &str| ContentMount { target: Some(target.into()), ..plain(name) };
        assert_eq!(content("db"), Ok(plain("db")));
        assert_eq!(content("db:/etc/db"), Ok(at("db", "/etc/db")));
        assert_eq!(content(r"a\:5000:/a\,b\:c"), Ok(at("a:5000", "/a,b:c")));
        assert_eq!(content("db,uid=0,gid=33,mode=0440"), {
            Ok(ContentMount { uid: Some(0), gid: Some(33), mode: Some(0o440), ..plain("db") })
        });
        assert_eq!(content("db:/x,template"), Ok(ContentMount { template: true, ..at("db", "/x") }));
        for (bad, why) in [
            ("", "\"\" is not a name"),
            ("a b", "\"a b\" is not a name"),
            ("db:/a:ro", "too many colons"),
            ("db,uid=root", "\"root\" is not a number of 0 to 4294967294; names are not looked up here"),
            ("db,gid=-1", "\"-1\" is not a number"),
            ("db,mode=8", "\"8\" are no permission bits"),
            ("db,uid=1,uid=1", "\"uid=1\" says again"),
            ("db,ro", "\"ro\" is not known; there are uid=N, gid=N, mode=OCTAL and template"),
            ("db,", "\"\" is not known"),
        ] {
            let found = content(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn registries_are_hosts_as_images_name_them() {
        for (text, wanted) in [
            ("ghcr.io", "ghcr.io"),
            ("localhost", "localhost"),
            ("reg:5000", "reg:5000"),
            ("index.docker.io", "docker.io"),
        ] {
            assert_eq!(registry(text).map(|name| name.to_string()).as_deref(), Ok(wanted));
        }
        for (bad, why) in [
            ("https://ghcr.io", "give only HOST[:PORT]"),
            ("ghcr.io/org", "give only HOST[:PORT]"),
            ("", "\"\" is not a name"),
            ("[::1]:5000", "give HOST[:PORT], like registry.example:5000"),
            ("ghcr", "no image names the registry \"ghcr\""),
        ] {
            let found = registry(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }
}
