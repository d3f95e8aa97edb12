//! Whether the kernel may confine programs by what they are: AppArmor by the paths of programs, SELinux by their
//! labels. Such a program may be kept from the preload library, or the dynamic linker is told to distrust its
//! environment, and nobody can see that beforehand: it is decided as the program is executed.

use std::fs;
use std::path::Path;

/// Whether a program that is executed may be confined otherwise than the one that executes it, by the profiles that
/// are loaded now.
pub fn programs_may_be() -> bool {
    are_confined_under(Path::new("/sys"))
}

fn are_confined_under(sys: &Path) -> bool {
    let is_on = |path: &str| {
        let told = fs::read(sys.join(path)).unwrap_or_default();
        matches!(told.first(), Some(b'Y' | b'1'))
    };
    sys.join("fs/selinux/enforce").exists()
        || is_on("module/apparmor/parameters/enabled") && has_profiles(sys)
}

/// Whether AppArmor has a profile that confines (apparmor.d(5)). Where its directory cannot be seen, as in
/// containers, it may have.
fn has_profiles(sys: &Path) -> bool {
    let Ok(profiles) = fs::read_dir(sys.join("kernel/security/apparmor/policy/profiles")) else {
        return true;
    };
    profiles.flatten().any(|profile| {
        let mode = fs::read_to_string(profile.path().join("mode")).unwrap_or_default();
        !matches!(mode.trim(), "unconfined" | "complain")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_files::Files;

    #[test]
    fn who_confines_nobody_is_none() {
        let sys = Files::new();
        let is_confined = || are_confined_under(sys.path());
        assert!(!is_confined());
        sys.put("module/apparmor/parameters/enabled", "N\n");
        assert!(!is_confined());
        sys.put("module/apparmor/parameters/enabled", "Y\n");
        assert!(is_confined(), "nothing is to be seen of its profiles");
        let profiles = "kernel/security/apparmor/policy/profiles";
        fs::create_dir_all(sys.path().join(profiles)).unwrap();
        assert!(!is_confined());
        sys.put(&format!("{profiles}/browser.0/mode"), "unconfined\n");
        sys.put(&format!("{profiles}/office.1/mode"), "complain\n");
        assert!(!is_confined());
        sys.put(&format!("{profiles}/tcpdump.2/mode"), "enforce\n");
        assert!(is_confined());
        fs::remove_dir_all(sys.path().join("module")).unwrap();
        assert!(!is_confined());
        sys.put("fs/selinux/enforce", "0");
        assert!(is_confined(), "SELinux distrusts the environment without enforcing, too");
    }
}
