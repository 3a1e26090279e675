//! Names the shared library as programs will look for it, whatever file cargo puts it in. The number rises with each change that
//! programs linked before would not survive.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsyncline.so.0");
}
