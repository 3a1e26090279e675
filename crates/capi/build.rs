//! Sets the name by which programs look for the shared library, whatever file cargo puts it in. The
//! number rises with each change that breaks programs linked before.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsyncline.so.0");
}
