//! Names of cgroups that people know.

/// Number of digits of the ID of a container that are shown, as `docker ps` does.
const ID_DIGITS: usize = 12;
/// Number of digits of the ID of a container (SHA-256).
const ID_LENGTH: usize = 64;
/// Number of digits of a UID (RFC 4122) without hyphens.
const UID_DIGITS: usize = 32;

/// Returns the name of a cgroup by which people know it: the unit of systemd, the container, or the
/// pod and the container. `None` if its path has none of them.
pub fn known_name(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let container = parts.iter().rev().find_map(|part| container(part));
    let pod = parts.iter().find_map(|part| pod_uid(part));
    if let Some(pod) = pod {
        let pod = format!("pod {pod}");
        return Some(container.map_or(pod.clone(), |(_, id)| format!("{pod} container {id}")));
    }
    if let Some((engine, id)) = container {
        return Some(format!("{} {id}", engine.unwrap_or("container")));
    }
    let is_unit = |part: &&&str| part.ends_with(".service") || part.ends_with(".scope");
    let unit = parts.iter().rev().find(is_unit)?;
    Some(unescaped(unit))
}

/// Returns the path down to the pod in the path of a cgroup; `None` if it is not in a pod. A
/// relative path (`/../../podUID/…`) has it, too.
pub fn pod_path(path: &str) -> Option<&str> {
    let mut end = 0;
    for part in path.split('/') {
        end += part.len();
        if pod_uid(part).is_some() {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

/// Returns the UID of the pod that a part of the path of a cgroup names: `pod8f5c…`, or, by
/// systemd, `kubepods-burstable-pod8f5c_….slice`. Sources: pkg/kubelet/cm/cgroup_manager_linux.go
/// and types.go in Kubernetes.
pub fn pod_uid(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let uid = &part[part.rfind("pod")? + 3..];
    // systemd reserves the hyphen.
    let uid = uid.replace('_', "-");
    let digits = uid.chars().filter(char::is_ascii_hexdigit).count();
    let is_uid = uid.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-');
    (is_uid && digits >= UID_DIGITS).then_some(uid)
}

/// Returns the engine, if it is named, and the short ID of the container of a part:
/// `docker-4f1c….scope`, `libpod-4f1c….scope`, `cri-containerd-4f1c….scope`, or the ID alone.
fn container(part: &str) -> Option<(Option<&'static str>, String)> {
    const ENGINES: [(&str, &str); 4] = [
        ("docker-", "docker"),
        ("libpod-", "podman"),
        ("cri-containerd-", "containerd"),
        ("crio-", "cri-o"),
    ];
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let named = ENGINES.iter().find_map(|(prefix, name)| Some((*name, part.strip_prefix(prefix)?)));
    let (engine, id) = named.map_or((None, part), |(name, id)| (Some(name), id));
    let is_id = id.len() == ID_LENGTH && id.chars().all(|digit| digit.is_ascii_hexdigit());
    is_id.then(|| (engine, id[..ID_DIGITS].to_owned()))
}

/// Replaces `\x2d` and the like, with which systemd escapes the names of units.
fn unescaped(unit: &str) -> String {
    let mut parts = unit.split("\\x");
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if byte.is_ascii_graphic() => {
                name.push(char::from(byte));
                name.push_str(&part[2..]);
            }
            _ => {
                name.push_str("\\x");
                name.push_str(part);
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8f5c1d2e-aaaa-bbbb-cccc-0123456789ab";

    #[test]
    fn units_and_containers_have_the_names_that_people_know() {
        let id = "4f1c2a9b0d3e".to_owned() + &"0".repeat(52);
        for (path, name) in [
            ("/system.slice/redis.service".to_owned(), "redis.service"),
            (
                "/system.slice/system-getty.slice/getty@tty1.service".to_owned(),
                "getty@tty1.service",
            ),
            ("/user.slice/user-0.slice/run-a\\x2db.scope".to_owned(), "run-a-b.scope"),
            (format!("/system.slice/docker-{id}.scope"), "docker 4f1c2a9b0d3e"),
            (format!("/machine.slice/libpod-{id}.scope/container"), "podman 4f1c2a9b0d3e"),
            (format!("/docker/{id}"), "container 4f1c2a9b0d3e"),
        ] {
            assert_eq!(known_name(&path).as_deref(), Some(name), "{path}");
        }
        for path in ["/", "/user.slice", "/jobs/a", "/docker/4f1c"] {
            assert_eq!(known_name(path), None, "{path}");
        }
    }

    #[test]
    fn a_pod_is_named_by_its_uid_and_its_container() {
        let id = "4f1c2a9b0d3e".to_owned() + &"0".repeat(52);
        let path = format!("/kubepods/burstable/pod{UID}/{id}");
        let name = format!("pod {UID} container 4f1c2a9b0d3e");
        assert_eq!(known_name(&path), Some(name));
        assert_eq!(pod_path(&path), Some(format!("/kubepods/burstable/pod{UID}").as_str()));
        let slice = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
            UID.replace('-', "_")
        );
        assert_eq!(pod_path(&format!("{slice}/cri-containerd-{id}.scope")), Some(slice.as_str()));
        assert_eq!(known_name(&slice), Some(format!("pod {UID}")));
        assert_eq!(pod_path("/system.slice/podman.service"), None);
    }

    #[test]
    fn escapes_that_would_steer_a_terminal_stay_escaped() {
        assert_eq!(known_name("/a\\x1b\\x.service").as_deref(), Some("a\\x1b\\x.service"));
    }
}
