package dsl

import org.gradle.api.DomainObjectCollection
import org.gradle.api.JavaVersion
import org.gradle.api.NamedDomainObjectCollection
import org.gradle.api.NamedDomainObjectProvider
import org.gradle.api.PolymorphicDomainObjectContainer
import org.gradle.api.Project
import org.gradle.api.Task
import org.gradle.api.artifacts.dsl.DependencyHandler
import org.gradle.api.file.DirectoryProperty
import org.gradle.api.publish.PublishingExtension
import org.gradle.api.tasks.TaskContainer
import org.gradle.api.tasks.TaskProvider

// What a build script has beside Gradle's own API: its Kotlin DSL, and the part of the Android plugin's that is used,
// written from their documentation. That the script compiles with it says no more of the Android plugin than that.
// Sources: docs.gradle.org/current/kotlin-dsl, developer.android.com/reference/tools/gradle-api (checked 2026-11).

class Plugins {
    fun id(name: String) = Unit

    @Suppress("ktlint:standard:property-naming")
    val `maven-publish` = Unit
}

fun Project.plugins(block: Plugins.() -> Unit) = Unit

fun Project.apply(plugin: String) = Unit

inline fun <reified T : Task> TaskContainer.register(name: String, noinline block: T.() -> Unit): TaskProvider<T> =
    register(name, T::class.java) { block() }

inline fun <reified T : Any> PolymorphicDomainObjectContainer<in T>.register(
    name: String,
    noinline block: T.() -> Unit,
): NamedDomainObjectProvider<T> = register(name, T::class.java) { block() }

inline fun <reified T : Any> DomainObjectCollection<in T>.withType(): DomainObjectCollection<T> =
    withType(T::class.java)

operator fun <T : Any> NamedDomainObjectCollection<T>.get(name: String): T = getByName(name)

class Dependencies(private val handler: DependencyHandler) {
    fun api(notation: Any) = handler.add("api", notation)

    fun implementation(notation: Any) = handler.add("implementation", notation)

    fun compileOnly(notation: Any) = handler.add("compileOnly", notation)
}

fun Project.dependencies(block: Dependencies.() -> Unit) = Unit

fun Project.publishing(block: PublishingExtension.() -> Unit) = Unit

interface LibraryExtension {
    var namespace: String?
    var compileSdk: Int?

    fun defaultConfig(block: DefaultConfig.() -> Unit)

    fun compileOptions(block: CompileOptions.() -> Unit)

    fun publishing(block: LibraryPublishing.() -> Unit)
}

interface DefaultConfig {
    var minSdk: Int?

    fun consumerProguardFiles(vararg files: Any): Any
}

interface CompileOptions {
    var sourceCompatibility: JavaVersion
    var targetCompatibility: JavaVersion
}

interface LibraryPublishing {
    fun singleVariant(name: String, block: SingleVariant.() -> Unit)
}

interface SingleVariant {
    fun withSourcesJar()
}

fun Project.android(block: LibraryExtension.() -> Unit) = Unit

interface AndroidComponents {
    fun onVariants(block: (Variant) -> Unit)
}

interface Variant {
    val name: String
    val sources: Sources
}

interface Sources {
    val assets: Assets?
}

interface Assets {
    fun <T : Task> addGeneratedSourceDirectory(task: TaskProvider<T>, wiredWith: (T) -> DirectoryProperty)
}

fun Project.androidComponents(block: AndroidComponents.() -> Unit) = Unit
