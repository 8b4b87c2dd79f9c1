# Made by edgepack. bitbake has never run it: look through it before you use it.
SUMMARY = "model @PROJECT@ for @TARGET@"
# edgepack's code in the bundle is Apache-2.0. What may be done with the model, its owner says:
# name that licence, and its file, in a .bbappend.
LICENSE = "Apache-2.0 & Model"
NO_GENERIC_LICENSE[Model] = "manifest.json"
LIC_FILES_CHKSUM = "\
    file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10 \
    file://manifest.json;md5=@MANIFEST@ \
"

# Where the archive is: files/ beside this recipe, or such as https://example.com/models/
EDGEPACK_SOURCE ?= "file://"
SRC_URI = "${EDGEPACK_SOURCE}@BUNDLE@.tar.gz"
SRC_URI[sha256sum] = "@SHA256@"
# Before Yocto 5.1 archives are unpacked into WORKDIR.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/@BUNDLE@"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    bundle=${nonarch_libdir}/edgepack/@PROJECT@
    install -d ${D}$bundle
    cp -R --no-preserve=ownership ${S}/. ${D}$bundle/
    if [ -e ${S}/share/pkgconfig/@PROJECT@.pc ]; then
        install -d ${D}${datadir}/cmake ${D}${datadir}/pkgconfig
        ln -sr ${D}$bundle/share/cmake/@PROJECT@ ${D}${datadir}/cmake/@PROJECT@
        sed "s|^bundle=.*|bundle=$bundle|" ${S}/share/pkgconfig/@PROJECT@.pc > ${D}${datadir}/pkgconfig/@PROJECT@.pc
    fi
}

FILES:${PN} = "${nonarch_libdir}/edgepack"
FILES:${PN}-dev = "${datadir}/cmake ${datadir}/pkgconfig"
RDEPENDS:${PN} = "@DEPENDS@"
# The bundle of another target has the same place.
RPROVIDES:${PN} = "@PACKAGE@"
RCONFLICTS:${PN} = "@PACKAGE@"
RREPLACES:${PN} = "@PACKAGE@"
# The Python loader and what measures: a program in C++ needs neither.
RRECOMMENDS:${PN} = "python3-core python3-numpy"
# CMake's files lead into the bundle, and this folder is not in sysroots by itself.
SYSROOT_DIRS += "${nonarch_libdir}/edgepack"
# The manifest has the hash of every file.
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_SYSROOT_STRIP = "1"
INSANE_SKIP:${PN} += "already-stripped arch file-rdeps"
