//! Lines of a page, each for a part of the answer that only some processes have.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::growth::{Growth, GrowthCourse, GrowthPart};
use lowtide_model::inspection::ContainerUse;

use crate::screen::Screen;
use crate::text::{printable, shortened, signed};

/// Minimum part of the growth, or of the charge, for a part of it to be named.
const NAMED: f64 = 0.05;

/// Formats the growth of a process on one line: how much, in which course, and the owners that grew
/// most, as far as the line has room for them. Empty if it did not grow.
pub(super) fn growth(growth: &Growth, screen: Screen) -> String {
    let course = match growth.course {
        GrowthCourse::Steady => "steady",
        GrowthCourse::Little => "steady, but little",
        GrowthCourse::Once => "not steady",
        GrowthCourse::Level | GrowthCourse::Unknown => return String::new(),
    };
    let [before, after] = growth.rss_bytes;
    let rise = after.saturating_sub(before) as i64;
    if rise <= 0 {
        return String::new();
    }
    let time = HumanSeconds(growth.elapsed_s);
    let mut parts = vec![format!("growth: {} in {time}, {course}", signed(rise))];
    let limit = growth.limit_bytes.zip(growth.seconds_to_limit);
    // One of the process is of another quantity than RSS.
    let name = growth.process_limit.map_or(String::new(), |own| format!(" ({})", own.kind.name()));
    parts.extend(limit.map(|(limit, left_s)| {
        format!("limit of {}{name} in {}", Human(limit), HumanSeconds(left_s))
    }));
    let is_named = |part: &&GrowthPart| part.bytes > 0 && part.bytes as f64 >= NAMED * rise as f64;
    let name = |part: &GrowthPart| {
        let name = part.name.clone().unwrap_or_else(|| part.owner.replace('_', " "));
        format!("{name} {}", signed(part.bytes))
    };
    parts.extend(growth.by.iter().filter(is_named).map(name));
    one_line(&parts, screen)
}

/// Formats the cgroup of a process on one line: the charge, the limit, the part of the process, and
/// who holds the rest.
pub(super) fn container(container: &ContainerUse, screen: Screen) -> String {
    let charged_bytes = container.charged_bytes;
    /// Maximum length of its name, in characters: that of a container has 64 digits.
    const NAME: usize = 24;
    let name = container.path.rsplit('/').next().unwrap_or_default();
    // The root of a namespace of cgroups has no name.
    let name = if name.is_empty() { String::new() } else { format!(" {}", shortened(name, NAME)) };
    let head = format!(
        "cgroup{name}: {} of {} · this process ≈ {}",
        Human(charged_bytes),
        Human(container.limit_bytes),
        Human(container.own_bytes)
    );
    let mut others = vec![
        ("other processes ≈", container.others_bytes),
        ("page cache", container.cache_bytes),
        ("shared memory", container.shared_bytes),
        ("kernel", container.kernel_bytes),
    ];
    others.retain(|(_, bytes)| *bytes as f64 >= NAMED * charged_bytes as f64);
    others.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let others = others.into_iter().map(|(what, bytes)| format!("{what} {}", Human(bytes)));
    let parts: Vec<String> = std::iter::once(head).chain(others).collect();
    one_line(&parts, screen)
}

/// Joins the first parts for which one line has room.
fn one_line(parts: &[String], screen: Screen) -> String {
    let mut line = String::new();
    for part in parts {
        let part = printable(part);
        let gap = if line.is_empty() { "" } else { " · " };
        let length = line.chars().count() + gap.chars().count() + part.chars().count();
        if !line.is_empty() && length > usize::from(screen.width) {
            break;
        }
        line += gap;
        line += &part;
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Screen = Screen { width: 80, colour: false };

    #[test]
    fn growth_is_one_line_with_the_owners_that_grew_most() {
        let text = r#"{"rss_bytes": [100000000, 130000000], "elapsed_s": 60.0, "course": "steady",
            "rss_bytes_per_hour": 1, "followed_share": 1.0, "limit_bytes": 536870912, "seconds_to_limit": 600.0,
            "by": [
                {"owner": "allocated", "name": null, "count": null, "bytes": 28000000, "bytes_per_hour": 1},
                {"owner": "program_data", "name": null, "count": null, "bytes": 2000000, "bytes_per_hour": 1},
                {"owner": "file", "name": "/x", "count": null, "bytes": 9, "bytes_per_hour": 1}]}"#;
        let mut found: Growth = serde_json::from_str(text).unwrap();
        assert_eq!(
            growth(&found, Screen { width: 120, ..NARROW }),
            "growth: +28.6 MiB in 1 min 0 s, steady · limit of 512 MiB in 10 min 0 s · allocated +26.7 MiB · program data \
             +1.91 MiB\n"
        );
        assert_eq!(
            growth(&found, NARROW),
            "growth: +28.6 MiB in 1 min 0 s, steady · limit of 512 MiB in 10 min 0 s\n"
        );
        found.course = GrowthCourse::Level;
        assert_eq!(growth(&found, NARROW), "");
    }

    #[test]
    fn the_container_of_a_process_is_one_line_with_its_largest_parts() {
        let mut found = ContainerUse {
            path: "/pod".to_owned(),
            limit_bytes: 512 << 20,
            charged_bytes: 400 << 20,
            own_bytes: 100 << 20,
            others_bytes: 10 << 20,
            cache_bytes: 250 << 20,
            shared_bytes: 30 << 20,
            kernel_bytes: 10 << 20,
        };
        assert_eq!(
            container(&found, NARROW),
            "cgroup pod: 400 MiB of 512 MiB · this process ≈ 100 MiB · page cache 250 MiB\n"
        );
        (found.path, found.charged_bytes) = ("/".to_owned(), 30 << 20);
        (found.cache_bytes, found.shared_bytes) = (0, 0);
        found.own_bytes = 20 << 20;
        let wide = Screen { width: 120, ..NARROW };
        assert_eq!(
            container(&found, wide),
            "cgroup: 30.0 MiB of 512 MiB · this process ≈ 20.0 MiB · other processes ≈ 10.0 MiB · kernel 10.0 MiB\n"
        );
    }
}
