//! What is mounted in a container, as people write it.

use warren_types::{Bytes, Mount, MountSource, Propagation};

/// The parts of a text between colons. A colon that belongs to a part is written `\:`, a backslash `\\`.
pub(super) fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let last = parts.last_mut().expect("there is always one part");
        match (character, characters.peek()) {
            ('\\', Some(next @ (':' | '\\'))) => {
                last.push(*next);
                characters.next();
            }
            (':', _) => parts.push(String::new()),
            _ => last.push(character),
        }
    }
    parts
}

/// Notes an option; each may be said once.
fn once<T>(option: &str, place: &mut Option<T>, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{option:?} says again what was said before")),
    }
}

/// `SOURCE:TARGET[:ro|rw,rprivate|rslave|rshared,nonrecursive]`.
pub fn bind(text: &str) -> Result<Mount, String> {
    let parts = parts(text);
    let [path, target, options @ ..] = parts.as_slice() else {
        return Err("give SOURCE:TARGET, like /srv/data:/data".to_owned());
    };
    let (mut read_only, mut propagation, mut alone) = (None, None, None);
    for option in options_of(options)? {
        match option {
            "ro" | "rw" => once(option, &mut read_only, option == "ro")?,
            "nonrecursive" => once(option, &mut alone, true)?,
            other => {
                let known = "ro, rw, nonrecursive, rprivate, rslave and rshared";
                let unknown = |_| format!("{other:?} is not known; there are {known}");
                once(option, &mut propagation, other.parse::<Propagation>().map_err(unknown)?)?;
            }
        }
    }
    let source = MountSource::Bind {
        path: path.clone(),
        propagation: propagation.unwrap_or_default(),
        recursive: alone.is_none(),
    };
    Ok(Mount { target: target.clone(), source, read_only: read_only.unwrap_or_default() })
}

/// `TARGET[:size=BYTES,mode=OCTAL,exec,ro]`.
pub fn tmpfs(text: &str) -> Result<Mount, String> {
    let parts = parts(text);
    let [target, options @ ..] = parts.as_slice() else { return Err("give a path, like /tmp".to_owned()) };
    let (mut size, mut mode, mut exec, mut read_only) = (None, None, None, None);
    for option in options_of(options)? {
        match option.split_once('=') {
            Some(("size", bytes)) => {
                let bytes: Bytes = bytes.parse().map_err(|why| format!("size: {why}"))?;
                once(option, &mut size, bytes)?;
            }
            Some(("mode", bits)) => once(option, &mut mode, permissions(bits)?)?,
            None if option == "exec" || option == "noexec" => once(option, &mut exec, option == "exec")?,
            None if option == "ro" || option == "rw" => once(option, &mut read_only, option == "ro")?,
            _ => {
                let known = "size=BYTES, mode=OCTAL, exec, noexec, ro and rw";
                return Err(format!("{option:?} is not known; there are {known}"));
            }
        }
    }
    let source = MountSource::Tmpfs { size, mode, exec: exec.unwrap_or_default() };
    Ok(Mount { target: target.clone(), source, read_only: read_only.unwrap_or_default() })
}

/// The options behind the last colon, if there are any.
fn options_of(parts: &[String]) -> Result<Vec<&str>, String> {
    match parts {
        [] => Ok(Vec::new()),
        [options] if !options.is_empty() => Ok(options.split(',').collect()),
        [_] => Err("nothing stands behind the last colon; leave it out".to_owned()),
        _ => Err("has too many colons; write \\: for one that belongs to a path".to_owned()),
    }
}

fn permissions(text: &str) -> Result<u32, String> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|_| !text.starts_with('+'));
    bits.ok_or_else(|| format!("{text:?} are no permission bits; give octal digits like 1777"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(path: &str, target: &str) -> Mount {
        let source =
            MountSource::Bind { path: path.into(), propagation: Propagation::Private, recursive: true };
        Mount { target: target.into(), source, read_only: false }
    }

    #[test]
    fn bind_mounts_are_source_target_and_options() {
        assert_eq!(bind("/srv:/data"), Ok(bound("/srv", "/data")));
        assert_eq!(bind("/srv:/data:ro"), Ok(Mount { read_only: true, ..bound("/srv", "/data") }));
        assert_eq!(bind("/srv:/data:rw,rprivate"), Ok(bound("/srv", "/data")));
        assert_eq!(bind(r"/a\:b:/c\\d\e"), Ok(bound("/a:b", r"/c\d\e")));
        let source =
            MountSource::Bind { path: "/srv".into(), propagation: Propagation::Slave, recursive: false };
        let wanted = Mount { target: "/data".into(), source, read_only: false };
        assert_eq!(bind("/srv:/data:rslave,nonrecursive"), Ok(wanted));
        for (bad, why) in [
            ("", "give SOURCE:TARGET"),
            ("/srv", "give SOURCE:TARGET"),
            ("/srv:/data:", "nothing stands behind the last colon"),
            ("/srv:/data:ro:x", "too many colons"),
            ("/srv:/data:slave", "\"slave\" is not known; there are ro, rw, nonrecursive, rprivate"),
            ("/srv:/data:ro,rw", "\"rw\" says again"),
            ("/srv:/data:rslave,rshared", "\"rshared\" says again"),
            ("/srv:/data:,", "\"\" is not known"),
        ] {
            let found = bind(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn tmpfs_mounts_are_a_path_and_options() {
        let check = |text, size: Option<u64>, mode, exec, read_only| {
            let source = MountSource::Tmpfs { size: size.map(Bytes), mode, exec };
            assert_eq!(tmpfs(text), Ok(Mount { target: "/tmp".into(), source, read_only }), "{text}");
        };
        check("/tmp", None, None, false, false);
        check("/tmp:size=64Mi,mode=0700,exec", Some(64 << 20), Some(0o700), true, false);
        check("/tmp:ro,noexec", None, None, false, true);
        for (bad, why) in [
            ("/tmp:", "nothing stands behind"),
            ("/tmp:size=x", "size: \"x\" is not an amount of memory"),
            ("/tmp:mode=9", "\"9\" are no permission bits"),
            ("/tmp:mode=+7", "are no permission bits"),
            ("/tmp:size=1Mi,size=2Mi", "\"size=2Mi\" says again"),
            ("/tmp:uid=1", "\"uid=1\" is not known"),
            ("/tmp:suid", "\"suid\" is not known"),
            ("/tmp:exec:ro", "too many colons"),
        ] {
            let found = tmpfs(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }
}
